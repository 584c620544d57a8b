"""The table next to McMahan's: the best learning rate counts, as the paper counts rounds."""

from pathlib import Path

from benchmarks.reproductions import table
from flfast.output.results.runs import RunRecord


def run(values, *, lr, partition="iid", seed=0):
    config = {
        "local_epochs": 1,
        "batch_size": 10,
        "sampler": {"fraction": 0.1},
        "optimizer": {"lr": lr},
        "stop": {"metric": "global/accuracy", "value": 0.97},
        "seed": seed,
    }
    history = [{"round": str(r), "global/accuracy": str(v)} for r, v in enumerate(values)]
    choices = {"model": "mlp", "partition": partition}
    return RunRecord(
        folder=Path(),
        num=0,
        overrides={},
        choices=choices,
        config=config,
        history=history,
        outcome="finished",
        counts=True,
        error="",
        optimized="",
    )


def test_rates_where_a_seed_does_not_arrive_do_not_count():
    slow, fast = [0.1, 0.5, 0.96, 0.98], [0.1, 0.98]
    runs = [run(slow, lr=0.1), run(slow, lr=0.1, seed=1)]
    runs += [run(fast, lr=0.2), run([0.1], lr=0.2, seed=1)]
    runs += [run([0.1, 0.2], lr=0.1, partition="shards")]
    _, _, iid, shards = table(runs).splitlines()
    assert iid == "| 2NN | IID | 1 | 10 | 0.1 | 0.1, 0.2 | 0, 1 | 0.1 | 2 | 87 | 0.03 | ✓ |"
    assert "| not in 1 | 664 |  |  |" in shards
