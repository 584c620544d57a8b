import pytest
import torch
from tables import rows


@pytest.mark.slow
def test_every_round_says_what_it_asked_of_the_machine(flfast_run):
    folder = flfast_run("experiment=quick", "rounds=2", "callbacks=files")
    for row in rows(folder)[1:]:
        assert 10 < float(row["monitor/rank0_cpu_percent"]) < 3200
        assert 1e7 < float(row["monitor/rank0_memory_bytes"]) < 1e12
        assert 0 <= float(row["monitor/machine_cpu_percent"]) <= 100
        assert 0 < float(row["monitor/machine_memory_percent"]) <= 100
        assert 0 < float(row["monitor/disk_free_bytes"]) < 1e16
        assert ("monitor/gpu_percent" in row) == torch.cuda.is_available()
