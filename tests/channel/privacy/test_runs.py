"""Privacy in whole runs, through the command."""

import pytest
from sampling import others_slow
from tables import assert_same_numbers, rows, timeless

SMALL = ("experiment=quick", "callbacks=none", "model.hidden=[8]", "rounds=2", "batch_size=50")
CASES = [("scaffold", "fused"), ("ditto", "eager")]
EXACT = ("privacy.clip_norm=null", "privacy.noise_multiplier=0", "privacy.epsilon=null")


@pytest.mark.parametrize("option", others_slow(["central", "local", "dp_ftrl"], ["central"]))
def test_without_noise_and_bound_the_run_is_the_same_to_the_last_bit(flfast_run, option):
    settings = (*SMALL, "engine=eager", "sampler=cyclic", "rounds=1")
    expected = timeless(flfast_run(*settings))
    folder = flfast_run(*settings, f"privacy={option}", *EXACT, run_dir=option)
    found = timeless(folder)
    assert [row.pop("privacy/epsilon") for row in found] == ["", "inf"]
    assert found == [{k: v for k, v in row.items() if k in found[0]} for row in expected]


BANDED = ("privacy=dp_ftrl", "privacy.mechanism=banded", "sampler=cyclic", "sampler.fraction=0.3")


@pytest.mark.slow
def test_banded_noise_in_every_way_to_run(flfast_run):
    """Masks hide uploads from the server, ranks agree, and one band is `privacy=central`."""
    settings = (*SMALL, "rounds=4", "trainer.precision=64-true", "engine=eager", *BANDED)
    one = flfast_run(*settings)
    two = flfast_run(*settings, "strategy=ddp", "trainer.devices=2", run_dir="two")
    masks = ("secure=masks", "secure.bits=62", "secure.precision=1e-9")
    masked = flfast_run(*settings, *masks, run_dir="masked")
    assert_same_numbers(rows(two), rows(one), rel=1e-6)
    assert_same_numbers(rows(masked), rows(one), rel=1e-6)
    # A client takes part in one round of a pass of three.
    spent = [row["privacy/epsilon"] for row in rows(one)[1:]]
    assert spent[0] == spent[2] < spent[3]
    plain = ("privacy.bands=1", "privacy.epsilon=null", "privacy.noise_multiplier=0.5")
    independent = flfast_run(*settings, *plain, run_dir="independent")
    words = [word for word in (*settings, *plain[1:]) if not word.startswith("privacy.mech")]
    words = [word.replace("dp_ftrl", "central") for word in words]
    assert timeless(independent) == timeless(flfast_run(*words, run_dir="central"))


@pytest.mark.parametrize(("algorithm", "engine"), others_slow(CASES, []))
def test_central_noise_is_the_same_in_every_way_to_run(flfast_run, algorithm, engine):
    """One process, with the fused engine or the eager one; and two ranks with the eager one."""
    settings = (*SMALL, f"algorithm={algorithm}", "privacy=central", "privacy.accountant=rdp")
    settings = (*settings, "privacy.epsilon=1e4", "trainer.precision=64-true")
    one = flfast_run(*settings, f"engine={engine}")
    two = flfast_run(*settings, "engine=eager", "strategy=ddp", "trainer.devices=2", run_dir="two")
    assert_same_numbers(rows(two), rows(one), rel=1e-6)
    assert rows(two)[-1]["privacy/epsilon"] == rows(one)[-1]["privacy/epsilon"]


def test_single_examples(flfast_run):
    folder = flfast_run(*SMALL, "privacy=dp_sgd", "engine=eager")
    spent = [float(row["privacy/epsilon"]) for row in rows(folder)[1:]]
    assert spent[0] < 0.99 * 8 < spent[1] <= 8


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("privacy=central", "privacy.epsilon=null"), "privacy.noise_multiplier=null with"),
        (("privacy=local", "privacy.clip_norm=null"), "privacy.clip_norm=null: noise hides only"),
        (("privacy=dp_sgd", "last_batch=pad"), "last_batch=pad with privacy=dp_sgd"),
        (
            ("privacy=dp_sgd", "trainer.accumulate_grad_batches=2"),
            "trainer.accumulate_grad_batches=2 with privacy=dp_sgd",
        ),
        (
            ("privacy=dp_sgd", "schedule.phases=[{from: 2, overrides: ['++local_epochs=20']}]"),
            "schedule.phases[0]: ++local_epochs=20 with privacy=dp_sgd",
        ),
        (("privacy=dp_sgd", "batch_size=auto"), "batch_size=auto with privacy=dp_sgd"),
        (("privacy=dp_sgd", "schedule=growing_batch"), "schedule.phases[0]: batch_size=50 with"),
        (("privacy=central", "pace.keep_first=2"), "pace.keep_first=2 with privacy=central"),
        pytest.param(
            ("privacy=central", "devices=lognormal"),
            "privacy=central with devices=lognormal",
            marks=pytest.mark.slow,
        ),
        (("privacy=dp_ftrl",), "privacy=dp_ftrl with fixed sampling of clients"),
        (
            ("privacy=dp_ftrl", "sampler=cyclic", "privacy.mechanism=banded", "privacy.bands=9"),
            "privacy.bands=9 with privacy.mechanism=banded: allowed",
        ),
        (
            ("privacy=dp_ftrl", "privacy.bands=2", "sampler=cyclic"),
            "privacy.bands=2 with privacy.mechanism=tree: allowed",
        ),
        pytest.param(
            ("privacy=central", "sampler=by_size"),
            "privacy=central with sampler=by_size",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("privacy=dp_sgd", "algorithm=fedsam"),
            "algorithm=fedsam with privacy=dp_sgd",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_refused_before_training(flfast_run, capfd, overrides, message):
    with pytest.raises(SystemExit):
        flfast_run("experiment=quick", "callbacks=none", *overrides)
    assert message in capfd.readouterr().err
