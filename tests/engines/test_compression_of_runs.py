"""Messages and what clients keep of them are the same on every engine and number of ranks."""

from dataclasses import replace

import numpy as np
import pytest
from problems import problem_of
from solving import CLIENTS, PLAIN, SINGLE, Way, assert_same, solve

CASES = {
    ("scaffold", "quantize"): Way("fused"),
    ("scaffold", "topk"): Way("fused", 2, (CLIENTS, SINGLE)),
    ("ditto", "sign"): Way("fused", 2, (CLIENTS, SINGLE)),
    ("ditto", "topk"): Way("eager", 2, (CLIENTS,)),
}


def compressed(algorithm, compression):
    """A problem in double precision: rounding would move elements to another level."""
    return replace(
        problem_of(5).without_batch_statistics(),
        sizes=(6, 9, 7, 8, 12, 5),
        model="mlp",
        batchnorm=None,
        task="classification",
        algorithm=algorithm,
        optimizer="sgd",
        optimizer_state="reset",
        lr=0.05,
        local_steps=3,
        local_epochs=None,
        limit=1.0,
        clip=None,
        fraction=0.6,
        pace="rounds",
        dropout=0.0,
        rounds=3,
        precision="64-true",
        adversary=None,
        compression=compression,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("case", "way"), CASES.items(), ids=str)
def test_messages_do_not_depend_on_engine_and_ranks(case, way, solve_in):
    problem = compressed(*case)
    expected = solve(problem, PLAIN)
    assert_same(solve_in(problem, way), expected, problem)
    kept = {
        client: sum(np.abs(leaf).sum() for name, leaf in state.items() if "residuals" in name)
        for client, state in expected.states.items()
    }
    has_kept = {client for client, total in kept.items() if total > 0}
    assert has_kept == (set() if case[1] == "quantize" else set(kept))
