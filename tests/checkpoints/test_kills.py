"""The real command, killed with SIGKILL; more of it is `python -m benchmarks.kills`."""

import pytest

from benchmarks.kills import PACES, Case, tried


@pytest.mark.slow
@pytest.mark.usefixtures("ran_once")
@pytest.mark.parametrize(
    ("algorithm", "engine", "strategy", "states", "pace"),
    [
        ("scaffold", "fused", "single", "disk", "buffered"),
        ("ditto", "eager", "ddp", "auto", "sync"),
        ("fedadam", "fused", "ddp", "auto", "async"),
    ],
)
def test_a_run_that_is_killed_ends_as_if_it_had_not_been(
    tmp_path, algorithm, engine, strategy, states, pace
):
    """Server, states, rows to the last bit, whichever process dies."""
    words = (f"algorithm={algorithm}", f"engine={engine}", f"client_states={states}")
    case = Case((*words, *PACES[pace]), rounds=15, kills=2, strategy=strategy)
    outcome = tried(case, tmp_path, seed=0)
    assert outcome.clean, outcome
    assert outcome.killed.total() == 2
