"""A trial before training: fused local steps must give the weights of eager ones up to rounding.

The allowed difference depends on model and optimizer. Adam, for instance, turns a gradient of
mere rounding errors into a full step. Where a fixed tolerance is not met, the trial therefore
measures the effect of rounding: it repeats the eager steps from weights with a relative error of
one unit in the last place. A backward stable computation differs no more than that.

`training.py` runs the trial once per plan. `run/stack_choice.py` uses `agree` for stacks.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from flfast.algorithms.contract.downloads import first_downloads, tried_before_round_1
from flfast.channel.sent import LocalResult
from flfast.engines.eager import EagerTraining
from flfast.engines.local_training import LocalTraining
from flfast.engines.site import Site
from flfast.state.fp32 import allows_tf32
from flfast.state.messages import first_line
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree, tree_map

NUM_PERTURBED = 2
SAFETY = 8.0
"""Fused steps may differ by this factor times the largest effect of perturbed weights."""

FLIPPED = 1e-3
"""Fused steps may also differ by this share of a float32 update, because a rounding error may flip
a ReLU or the maximum of a pooling window."""


class TrialSteps(NamedTuple):
    """Weights before and after local steps."""

    start: Tree
    end: Tree


def disagreement(site: Site, fused: LocalTraining, plan: RoundPlan) -> str | None:
    """How two fused local steps of a client differ from eager ones; None if they agree."""
    plan = plan._replace(local_steps=2, local_epochs=None)
    client_id = site.data.first_client
    download = first_downloads(site.algorithm, site.first_weights, client_id)

    def two_steps(training: LocalTraining) -> TrialSteps:
        results: list[LocalResult] = []
        training.train([client_id], download, plan, results.extend)
        return TrialSteps(results[0].context.start, results[0].done.weights)

    eager = EagerTraining(site)
    with tried_before_round_1(download(client_id)):
        expected = two_steps(eager)
    try:
        found = two_steps(fused)
    except Exception as error:  # noqa: BLE001 - tracing may raise any exception
        return f"the model cannot be traced: {first_line(error)}"
    if agree(found.end, expected):
        return None
    device = site.trainers.trainer(plan).trainer.strategy.root_device
    if not agree(two_steps(eager).end, expected):
        return "the model gives different numbers each time"
    nearby = (  # one after another, each in the memory of the one before
        two_steps(EagerTraining(site, perturb=perturb))
        for perturb in perturbations(plan.precision, device)
    )
    same = agree(found.end, expected, nearby=nearby)
    return None if same else "traced steps end at other weights (docs/engines.md, Equal steps)"


def agree(weights: Tree, expected: TrialSteps, *, nearby: Iterable[TrialSteps] = ()) -> bool:
    """Whether two ways of local training end at the same weights up to rounding.

    `nearby` are the reference steps from perturbed weights.
    """
    ends = _flat(expected.end)
    if not math.isfinite(_norm(ends)):  # such as with NaN among the examples
        return not math.isfinite(_norm(_flat(weights)))
    eps = max((torch.finfo(leaf.dtype).eps for leaf in ends), default=0.0)
    # Updates are compared, not ends: the perturbation itself is no effect of rounding.
    rounding = max((_distance(_update(other), _update(expected)) for other in nearby), default=0.0)
    rounding += eps * _norm(ends)
    flipped = FLIPPED * min(eps / torch.finfo(torch.float32).eps, 1.0)
    allowed = SAFETY * rounding + flipped * _norm(_update(expected))
    return _distance(_flat(weights), ends) <= allowed


def _update(trained: TrialSteps) -> Iterator[Tensor]:
    """What steps changed, float64, leaf by leaf: all leaves of a large model are not in memory."""
    pairs = zip(_flat(trained.end), _flat(trained.start), strict=True)
    return (end.double() - start.double() for end, start in pairs)


def perturbations(precision: str, device: torch.device) -> Iterator[Callable[[Tree], Tree]]:
    """Functions that give weights a relative error of one unit in the last place.

    `precision` is as of `trainer.precision`, and `device` trains.
    """
    for number in range(NUM_PERTURBED):
        yield partial(_perturbed, precision=precision, device=device, seed=number)


def _perturbed(weights: Tree, *, precision: str, device: torch.device, seed: int) -> Tree:
    rng = torch.Generator().manual_seed(seed)

    def perturb(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        eps = _last_place(leaf.dtype, precision, device)
        signs = torch.randint(0, 2, leaf.shape, generator=rng).to(leaf) * 2 - 1
        return leaf * (1 + eps * signs)

    return tree_map(perturb, weights)


def _last_place(dtype: torch.dtype, precision: str, device: torch.device) -> float:
    """Relative unit in the last place of what products are computed from."""
    if precision in {"bf16-mixed", "16-mixed"}:
        dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float16
    elif device.type == "cuda" and dtype == torch.float32 and allows_tf32():
        dtype = torch.float16  # TF32 has as many bits of mantissa
    return torch.finfo(dtype).eps


def _flat(weights: Tree) -> list[Tensor]:
    """Floating-point leaves, sorted by name."""
    kinds = [leaf for kind in sorted(weights) for _, leaf in sorted(weights[kind].items())]
    return [leaf for leaf in kinds if leaf.is_floating_point()]


def _distance(left: Iterable[Tensor], right: Iterable[Tensor]) -> float:
    return _norm(a.double() - b.double() for a, b in zip(left, right, strict=True))


def _norm(parts: Iterable[Tensor]) -> float:
    return float(sum(float(part.double().square().sum()) for part in parts)) ** 0.5
