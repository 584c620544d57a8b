"""Masked uploads in whole runs, through the command."""

import pytest
from tables import assert_same_numbers, rows

SMALL = ("experiment=quick", "callbacks=none", "model.hidden=[8]", "rounds=2", "batch_size=50")
DROPOUT = ("sampler.dropout=0.3", "secure.threshold=0.3")
MASKED = ("secure=masks", "secure.bits=62", "secure.precision=1e-9")


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "engine"), [("scaffold", "fused"), ("ditto", "eager")])
def test_the_masked_sum_is_the_plain_one_in_every_way_to_run(flfast_run, algorithm, engine):
    """With clients that drop out; in one process with either engine, and in two ranks."""
    settings = (*SMALL, *DROPOUT[:1], f"algorithm={algorithm}", "trainer.precision=64-true")
    plain = flfast_run(*settings, f"engine={engine}")
    one = flfast_run(*settings, *DROPOUT, *MASKED, f"engine={engine}", run_dir="one")
    two = ("engine=eager", "strategy=ddp", "trainer.devices=2")
    two = flfast_run(*settings, *DROPOUT, *MASKED, *two, run_dir="two")
    assert_same_numbers(rows(one), rows(plain), rel=1e-6)
    assert_same_numbers(rows(two), rows(one), rel=1e-6)
    assert rows(one)[1]["comm/up_bytes"] != rows(plain)[1]["comm/up_bytes"]
    assert any(int(row["cohort/clients"]) < 5 for row in rows(one)[1:])
