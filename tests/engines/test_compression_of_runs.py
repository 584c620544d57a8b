"""Messages and what clients keep of them are the same on every engine and number of ranks.

With two classes the head's two rows change by opposite numbers, which differ by rounding only.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from adversaries import COMPRESSIONS
from problems import problem_of
from sampling import others_slow
from solving import CLIENTS, PLAIN, SINGLE, Way, assert_same, solve
from tied import rounded_otherwise

from flfast.state.tree import tree_map

CASES = [
    (("scaffold", "quantize"), Way("fused")),
    (("scaffold", "topk"), Way("fused", 2, (CLIENTS, SINGLE))),
    (("ditto", "sign"), Way("fused", 2, (CLIENTS, SINGLE))),
    (("ditto", "topk"), Way("eager", 2, (CLIENTS,))),
]


def compressed(algorithm, compression):
    """A problem of two classes, in double precision: rounding of float32 would move levels."""
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


@pytest.mark.parametrize(("case", "way"), others_slow(CASES, CASES[3:]), ids=str)
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


def rounds_otherwise(compression):
    """The compression, given changes that were computed with other rounding errors."""
    rng = np.random.default_rng(0)

    def other(leaf):
        if leaf.dtype == torch.float32:  # initial weights, which no way to execute a run changes
            return leaf
        return torch.from_numpy(rounded_otherwise(leaf.numpy(), rng))

    def encode(change, generator):
        return compression.encode(tree_map(other, change), generator)

    return replace(compression, encode=encode)


ROUNDED = [("ditto", "topk"), ("ditto", "sign"), ("scaffold", "quantize")]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] * (case[1] == "sign")) for case in ROUNDED],
)
def test_rounding_does_not_choose_what_is_sent(case, monkeypatch):
    problem = replace(compressed(*case), seed=0)
    assert problem.num_classes == 2
    expected = solve(problem, PLAIN)
    monkeypatch.setitem(COMPRESSIONS, case[1], rounds_otherwise(COMPRESSIONS[case[1]]))
    assert_same(solve(problem, PLAIN), expected, problem)
