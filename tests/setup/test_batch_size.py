"""`auto` in place of a number: the run is that of the number it found."""

import json

import pytest
from omegaconf import OmegaConf
from tables import assert_same_numbers, rows, timeless

from flfast.config.phases import Phase
from flfast.setup.batch_size import use_sizes

# The number is found before an engine is; every size of a client would be a program of its own.
QUICK = ("experiment=quick", "rounds=2", "callbacks=none", "engine=eager")


@pytest.mark.slow
def test_the_run_is_that_of_the_number_found(flfast_run):
    folder = flfast_run(*QUICK, "callbacks=files", "batch_size=auto", run_dir="auto")
    clients = json.loads((folder / "partition.json").read_text())["clients"]
    most = max(client["train"] for client in clients)
    log = (folder / "train.log").read_text()
    assert f"batch_size=auto is {most}\n" in log
    assert {row["plan/batch_size"] for row in rows(folder)[1:]} == {str(most)}
    assert timeless(folder) == timeless(flfast_run(*QUICK, f"batch_size={most}", run_dir="same"))


def test_phases_share_one_number_and_the_rate_scales_with_it(flfast_run):
    overrides = "'batch_size=auto', 'trainer.precision=bf16-mixed'"
    later = f"schedule.phases=[{{from: 2, overrides: [{overrides}]}}]"
    scaled = "schedule.lr_scaling=linear"
    _, first, second = rows(flfast_run(*QUICK, "batch_size=10", later, scaled))
    assert first["plan/batch_size"] == "10"
    ratio = float(second["plan/lr"]) / float(first["plan/lr"])
    assert ratio == pytest.approx(int(second["plan/batch_size"]) / 10)
    assert ratio > 5


def test_micro_batches_that_fit_change_no_number(flfast_run):
    # Eager takes the batch whole; fused cuts it for the cache, which rounds differently.
    whole = ("batch_size=-1", "sampler.fraction=0.3")
    auto = flfast_run(*QUICK, *whole, "micro_batch=auto", run_dir="auto")
    assert "micro_batch=auto is" in (auto / "train.log").read_text()
    assert timeless(auto) == timeless(flfast_run(*QUICK, *whole, run_dir="whole"))


@pytest.mark.slow
def test_every_rank_and_shard_uses_one_number(flfast_run):
    alone = rows(flfast_run(*QUICK, "batch_size=auto", run_dir="alone"))
    for shard in ("clients", "batch"):
        ranks = ("strategy=ddp", f"strategy.shard={shard}", "trainer.devices=2")
        both = rows(flfast_run(*QUICK, "batch_size=auto", *ranks, run_dir=shard))
        assert_same_numbers(both, alone)
        sizes = [[row["plan/batch_size"] for row in run] for run in (alone, both)]
        assert sizes[0] == sizes[1]


def test_the_smallest_device_decides():
    config = OmegaConf.create({"batch_size": "auto", "micro_batch": "auto"})
    ranks = [{"batch_size": 7, "micro_batch": 20}, {"batch_size": 9, "micro_batch": 3}]
    (phase,) = use_sizes([Phase(1, config)], ranks)
    assert phase.config == {"batch_size": 7, "micro_batch": 3}
