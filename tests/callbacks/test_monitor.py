import torch
from tables import rows


def test_every_round_says_what_it_asked_of_the_machine(flfast_run):
    folder = flfast_run("experiment=quick", "rounds=2", "callbacks=files")
    for row in rows(folder)[1:]:
        assert 10 < float(row["monitor/cpu_percent"]) < 3200
        assert 1e7 < float(row["monitor/rss_bytes"]) < 1e12
        assert ("monitor/gpu_percent" in row) == torch.cuda.is_available()
