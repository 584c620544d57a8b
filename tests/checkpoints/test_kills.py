"""The real command, killed with SIGKILL; more of it is `python -m benchmarks.kills`."""

import pytest

from benchmarks.kills import PACES, Case, tried

LONG = {"rounds": 15, "kills": 2}
CASES = [
    pytest.param("ditto", "eager", "ddp", "disk", "sync", {"rounds": 8, "kills": 1}, id="short"),
    pytest.param("scaffold", "fused", "single", "disk", "buffered", LONG, marks=pytest.mark.slow),
    pytest.param("ditto", "eager", "ddp", "auto", "sync", LONG, marks=pytest.mark.slow),
    pytest.param("fedadam", "fused", "ddp", "auto", "async", LONG, marks=pytest.mark.slow),
]


@pytest.mark.usefixtures("ran_once")
@pytest.mark.parametrize(("algorithm", "engine", "strategy", "states", "pace", "times"), CASES)
def test_a_run_that_is_killed_ends_as_if_it_had_not_been(
    tmp_path, algorithm, engine, strategy, states, pace, times
):
    """Server, states, rows to the last bit, whichever process dies."""
    words = (f"algorithm={algorithm}", f"engine={engine}", f"client_states={states}")
    case = Case((*words, *PACES[pace]), strategy=strategy, **times)
    outcome = tried(case, tmp_path, seed=0)
    assert outcome.clean, outcome
    assert outcome.killed.total() == times["kills"]
