"""However a problem is executed, it has one result: the same numbers from the same data."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import pytest
from covering import covering
from problems import Problem
from sampling import others_slow
from solving import BATCH, CLIENTS, DP, PLAIN, SINGLE, Way, assert_same, solve

Change = Callable[[Problem], Problem]


def same(problem: Problem) -> Problem:
    return problem


@dataclass(frozen=True)
class Variant:
    """Two problems that have one result, and how the second is executed.

    Attributes:
        name: of the test.
        way: strategies and ranks.
        plain: what one process solves, batch by batch.
        cut: what is solved that way.
        num_problems: of `PROBLEMS`, from the first; fewer where others have tried the parts.
    """

    name: str
    way: Way = PLAIN
    plain: Change = same
    cut: Change = same
    num_problems: int = 16


def frozen(problem: Problem) -> Problem:
    return problem.without_batch_statistics()


def conditioned(problem: Problem) -> Problem:
    # A bias in front of BatchNorm has no gradient but rounding, which Adam turns into steps.
    return frozen(problem) if problem.optimizer in {"adam", "adamw"} else problem


def pair(problem: Problem) -> Problem:
    return replace(frozen(problem), count=min(2, len(problem.sizes)))


def whole_steps(num_batches: int) -> Change:
    """A local step of `num_batches` batches, in one batch."""

    def change(problem: Problem) -> Problem:
        batch = max(problem.batching.batch_size, 1)
        whole = problem.with_batching(
            batch_size=batch * num_batches, accumulate=1, micro_batch=None
        )
        return replace(whole.without_batch_statistics(), limit=1.0)

    return change


def accumulated(num_batches: int) -> Change:
    def change(problem: Problem) -> Problem:
        whole = whole_steps(num_batches)(problem)
        batch = whole.batching.batch_size // num_batches
        return whole.with_batching(batch_size=batch, accumulate=num_batches)

    return change


def full_batch(problem: Problem) -> Problem:
    full = problem.with_batching(batch_size=-1, accumulate=1, micro_batch=None)
    return full.without_batch_statistics()


def micro_batched(size: int) -> Change:
    return lambda problem: full_batch(problem).with_batching(micro_batch=size)


# BatchNorm sees the same batches wherever clients stay whole; where batches are cut, over devices,
# ranks or micro-batches, it is frozen here. Dropout and augmentation are not drawn: divided
# batches agree on them in distribution only.
VARIANTS = [
    Variant("dp2", Way(strategies=(DP,)), frozen, frozen),
    Variant("ddp2-clients", Way(size=2, strategies=(CLIENTS,))),
    Variant("ddp2-batch", Way(size=2, strategies=(BATCH,)), frozen, frozen),
    Variant("ddp3-pair", Way(size=3, strategies=(CLIENTS, SINGLE, BATCH)), pair, pair, 8),
    Variant("in-turn", Way(size=2, strategies=(BATCH, DP, CLIENTS)), frozen, frozen, 8),
    Variant("accumulate2", PLAIN, whole_steps(2), accumulated(2)),
    Variant("accumulate5", PLAIN, whole_steps(5), accumulated(5), 8),
    Variant("fused", Way(engine="fused"), conditioned, conditioned),
    Variant("stacked", Way(engine="stacked"), conditioned, conditioned, 8),
    Variant("fused-ddp2", Way("fused", 2, (CLIENTS, SINGLE)), conditioned, conditioned, 8),
    Variant("fused-accumulate", Way("fused"), whole_steps(3), accumulated(3), 8),
    Variant("fused-full-batch", Way("fused"), full_batch, micro_batched(3), 8),
    Variant("full-batch", PLAIN, full_batch, micro_batched(2)),
]

PROBLEMS = covering(16)
CASES = [
    (variant, problem) for variant in VARIANTS for problem in PROBLEMS[: variant.num_problems]
]
reference = lru_cache(maxsize=None)(solve)


def name(value: Variant | Problem) -> str:
    return value.name if isinstance(value, Variant) else str(value.seed)


# Every eleventh case: of nine variants and eight problems.
LONG = [("fused", "191"), ("fused-full-batch", "183")]
FAST = [case for case in CASES[::11] if tuple(map(name, case)) not in LONG]


@pytest.mark.parametrize(("variant", "problem"), others_slow(CASES, FAST), ids=name)
def test_every_way_to_execute_a_problem_gives_one_result(variant, problem, solve_in):
    expected = reference(variant.plain(problem), PLAIN)
    found = solve_in(variant.cut(problem), variant.way)
    assert_same(found, expected, problem)
