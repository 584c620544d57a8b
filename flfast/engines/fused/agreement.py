"""A trial before training: fused local steps must give the weights of eager ones up to rounding.

The allowed difference depends on model and optimizer. Adam, for instance, turns a gradient of
mere rounding errors into a full step. The trial therefore measures it: it repeats the eager steps
from weights with a relative error of one unit in the last place. A backward stable computation
differs no more than that.

`training.py` runs the trial once per plan. `run/client_stack.py` uses `agree` for stacks.
"""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from flfast.engines.eager import EagerTraining
from flfast.engines.local_training import LocalResult, LocalTraining
from flfast.engines.site import Site
from flfast.plan import RoundPlan
from flfast.state.tree import Tree, tree_map
from flfast.state.weights import read_weights

NUM_PERTURBED = 2
SAFETY = 8.0
"""Fused steps may differ by this factor times the largest effect of perturbed weights."""

FLIPPED = 1e-3
"""Fused steps may also differ by this share of a float32 update, because a rounding error may flip
a ReLU or the maximum of a pooling window."""

_LOW_PRECISION = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


def disagreement(site: Site, fused: LocalTraining, plan: RoundPlan) -> str | None:
    """How two fused local steps of client 0 differ from eager ones; None if they agree.

    Args:
        site: of this rank.
        fused: the training to try.
        plan: of the round.
    """
    plan = plan._replace(local_steps=2, local_epochs=None)
    weights, eager = read_weights(site.model), EagerTraining(site)
    expected = _two_steps(site, eager, weights, plan)
    try:
        found = _two_steps(site, fused, weights, plan)
    except Exception as error:  # noqa: BLE001 - tracing may raise any exception
        return f"the model cannot be traced: {str(error).splitlines()[0]}"
    start, ends = expected.context.start, expected.done.weights
    again = _two_steps(site, eager, weights, plan).done.weights
    if not agree(again, ends, start=start):
        return "the model gives different numbers each time"
    nearby = [
        _two_steps(site, eager, perturbed, plan).done.weights
        for perturbed in perturbations(weights, plan.precision)
    ]
    same = agree(found.done.weights, ends, start=start, nearby=nearby)
    return None if same else "traced steps end at other weights"


def agree(found: Tree, expected: Tree, *, start: Tree, nearby: Iterable[Tree] = ()) -> bool:
    """Whether two ways of local training end at the same weights up to rounding.

    Args:
        found: weights after the steps on trial.
        expected: weights after the reference steps.
        start: weights before the steps.
        nearby: weights after the reference steps from each of `perturbations(start)`.
    """
    ends = _flat(expected)
    if not math.isfinite(_norm(ends)):  # such as with NaN among the examples
        return not math.isfinite(_norm(_flat(found)))
    eps = max((torch.finfo(leaf.dtype).eps for leaf in ends), default=0.0)
    rounding = max((_distance(_flat(end), ends) for end in nearby), default=0.0)
    rounding += eps * _norm(ends)
    flipped = FLIPPED * min(eps / torch.finfo(torch.float32).eps, 1.0)
    allowed = SAFETY * rounding + flipped * _distance(_flat(start), ends)
    return _distance(_flat(found), ends) <= allowed


def perturbations(weights: Tree, precision: str) -> Iterator[Tree]:
    """Copies of weights with random relative errors of one unit in the last place.

    Args:
        weights: to perturb; integers stay.
        precision: `trainer.precision`, which decides the unit.
    """
    rng = torch.Generator().manual_seed(0)

    def perturb(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        eps = torch.finfo(_LOW_PRECISION.get(precision, leaf.dtype)).eps
        signs = torch.randint(0, 2, leaf.shape, generator=rng).to(leaf) * 2 - 1
        return leaf * (1 + eps * signs)

    for _ in range(NUM_PERTURBED):
        yield tree_map(perturb, weights)


def _two_steps(site: Site, training: LocalTraining, weights: Tree, plan: RoundPlan) -> LocalResult:
    """Train client 0 from these server weights."""
    results: list[LocalResult] = []
    broadcast = site.algorithm.broadcast(site.algorithm.server_state(weights))
    training.train([0], broadcast, plan, results.append)
    return results[0]


def _flat(weights: Tree) -> list[Tensor]:
    """Floating-point leaves, sorted by name."""
    kinds = [leaf for kind in sorted(weights) for _, leaf in sorted(weights[kind].items())]
    return [leaf for leaf in kinds if leaf.is_floating_point()]


def _distance(left: list[Tensor], right: list[Tensor]) -> float:
    return _norm([a.double() - b.double() for a, b in zip(left, right, strict=True)])


def _norm(parts: list[Tensor]) -> float:
    return float(sum(float(part.double().square().sum()) for part in parts)) ** 0.5
