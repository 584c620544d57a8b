"""The real command, killed with SIGKILL; more of it is `python -m benchmarks.kills`."""

import pytest

from benchmarks.kills import PACES, Case, tried

OF = "model.of=[{mlp: {hidden: [32]}}, {mlp: {hidden: [16]}}]"
FAMILY = {"model": ("model=family", OF, "model.feature_dim=8")}
SLICES = {"model": ("model=family", OF, "model.feature_dim=null")}
BANDED = ("privacy=dp_ftrl", "privacy.mechanism=banded", "sampler=cyclic", "sampler.fraction=0.2")
CASES = {
    "alone": (("scaffold", "eager", "disk", "sync"), {"rounds": 8, "kills": 1}),
    "buffered": (("scaffold", "fused", "disk", "buffered"), {"rounds": 15, "kills": 2}),
    "ranks": (("ditto", "eager", "auto", "sync"), {"rounds": 15, "kills": 2, "strategy": "ddp"}),
    "async": (
        ("fedadam", "fused", "auto", "async"),
        {"rounds": 15, "kills": 2, "strategy": "ddp"},
    ),
    "banded": (
        ("fedavg", "eager", "ram", "sync"),
        {"rounds": 8, "kills": 1, "model": ("model.hidden=[32]", *BANDED)},
    ),
    "family": (("fedproto", "fused", "disk", "sync"), {"rounds": 8, "kills": 1, **FAMILY}),
    "slices": (("heterofl", "eager", "ram", "sync"), {"rounds": 8, "kills": 1, **SLICES}),
}


@pytest.mark.usefixtures("ran_once")
@pytest.mark.parametrize(
    "case", ["alone", *(pytest.param(case, marks=pytest.mark.slow) for case in [*CASES][1:])]
)
def test_a_run_that_is_killed_ends_as_if_it_had_not_been(tmp_path, case):
    """Server, states, rows to the last bit, whichever process dies."""
    (algorithm, engine, states, pace), options = CASES[case]
    words = (f"algorithm={algorithm}", f"engine={engine}", f"client_states={states}")
    outcome = tried(Case((*words, *PACES[pace]), **options), tmp_path, seed=0)
    assert outcome.clean, outcome
    assert outcome.killed.total() == options["kills"]
