"""The uploads of a stack of clients, made at once where the stack trained.

On the CPU they are rows. On a GPU they are trees whose leaves have a client axis; there they are
also checked and clipped, and the host learns of that later, in one copy for many stacks.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import partial, reduce
from math import isfinite
from operator import itemgetter
from typing import NamedTuple

import torch
from torch import Tensor

from flfast.channel.reduction import MeanReduction
from flfast.channel.sent import ClientReport, LocalResult, report_of
from flfast.channel.sides import DIVERGED, ClientSide
from flfast.engines.local_training import TrainedStack, with_sums
from flfast.state.precision import widest_float
from flfast.state.tree import Tree, all_finite, leaves, num_bytes, to_host, tree_map
from flfast.state.vector import learned, map_learned

WAIT_SECONDS = 1.0
"""Time after which the host reads what it has not reported yet, so that progress is visible."""


def change_rows(trained: TrainedStack) -> tuple[Tensor, Tree]:
    """`Context.change` of every client's weights: rows [S, D], and a tree like one of them."""
    sizes = [leaf[0].numel() for leaf in leaves(trained.weights)]
    rows = torch.empty(len(trained.bare), sum(sizes), dtype=next(leaves(trained.weights)).dtype)
    columns = iter(rows.split(sizes, dim=1))
    with torch.no_grad():
        tree_map(
            lambda end, start: torch.sub(end, start, out=next(columns).view(end.shape)),
            trained.weights,
            trained.start,
        )
    return rows, tree_map(itemgetter(0), trained.weights)


def finite_rows(rows: Tensor) -> list[bool]:
    """Whether no number of a row [D] is NaN or infinity, of S rows on the CPU."""
    # As in `all_finite`: a sum needs no mask, but may overflow.
    sums = rows.sum(1).tolist()
    return [
        isfinite(total) or bool(row.isfinite().all())
        for total, row in zip(sums, rows, strict=True)
    ]


def add_large(trained: TrainedStack, reduction: MeanReduction, side: ClientSide) -> ClientReport:
    """Add one client's change leaf by leaf: as a whole it is never in memory.

    Returns:
        The client's report.
    """
    (result,), start = trained.with_sums(), trained.start
    end = tree_map(itemgetter(0), trained.weights)
    sent = side.plain(result, end)
    report = report_of(result.client_id, sent, num_bytes(end))
    changes = (new - old for new, old in zip(leaves(end), leaves(start), strict=True))
    if not isfinite(result.loss_sum) or not all(all_finite({"": change}) for change in changes):
        return report.refused(DIVERGED)
    reduction.add_change(result.client_id, (start, end), sent.weight)
    return report


class Waiting(NamedTuple):
    """Uploads of a stack that the reduction has, and of which the host does not know all.

    Attributes:
        bare: of `TrainedStack`.
        size: bytes of an upload.
        facts: on the device, each leaf [S]: `loss` and `logged`; `arrived`, whether loss and
            upload are finite; `clipped`, whether the upload was longer than a bound.
        since: time of `perf_counter` when it was added.
    """

    bare: list[LocalResult]
    size: int
    facts: Tree
    since: float


def device_uploads(
    trained: TrainedStack, counted: Collection[str], limits: Sequence[float]
) -> tuple[Tree, Tree]:
    """The clipped uploads of a stack, and the `facts` of `Waiting`, without waiting for a GPU.

    Args:
        trained: on any device, where the results are, too.
        counted: names of the parts that are counts.
        limits: bounds of the norm of the learned leaves.

    Returns:
        `Context.change` of the clients' weights, each leaf [S, ...]; zeros where it has not
        arrived.
    """
    final = trained.final
    with torch.no_grad():
        context = trained.bare[0].context._replace(start=trained.start)
        changes = context.change(trained.weights)
        real = [leaf for leaf in leaves(changes) if leaf.is_floating_point()]
        checks = (_by_client(leaf).isfinite().all(1) for leaf in real)
        arrived = reduce(torch.logical_and, checks, final["loss"].isfinite())
        changes = tree_map(lambda leaf: leaf.where(_along(arrived, leaf), 0), changes)
        clipped = torch.zeros_like(arrived)
        for limit in limits:
            norms = _norms(learned(changes, counted))
            factors = (limit / norms).where(norms > limit, 1)
            changes = map_learned(partial(_scaled, factors=factors), changes, counted)
            clipped = clipped | (norms > limit)
        sums = tree_map(torch.clone, {"loss": final["loss"], "logged": final["logged"]})
    return changes, {**sums, "arrived": arrived, "clipped": clipped}


def _by_client(leaf: Tensor) -> Tensor:
    return leaf.reshape(len(leaf), -1)


def _along(values: Tensor, leaf: Tensor) -> Tensor:
    """A value of each client [S], to broadcast to a leaf [S, ...]."""
    return values.view(-1, *[1] * (leaf.ndim - 1))


def _norms(changes: Tree) -> Tensor:
    """Euclidean norm of each client's leaves, [S]."""
    parts = [
        torch.linalg.vector_norm(_by_client(leaf), dim=1, dtype=widest_float(leaf.device))
        for leaf in leaves(changes)
    ]
    return torch.linalg.vector_norm(torch.stack(parts), dim=0)


def _scaled(leaf: Tensor, factors: Tensor) -> Tensor:
    wide = torch.promote_types(leaf.dtype, torch.float32)
    return leaf * _along(factors.to(wide), leaf)


def known(waiting: Sequence[Waiting]) -> Iterator[tuple[LocalResult, int, bool, bool]]:
    """The result of each client, its upload's bytes, and whether that arrived and was clipped.

    It waits for the device, once.
    """
    facts = to_host({str(place): stack.facts for place, stack in enumerate(waiting)})
    for stack, found in zip(waiting, facts.values(), strict=True):
        logged = {name: sums.tolist() for name, sums in found["logged"].items()}
        results = with_sums(stack.bare, found["loss"].tolist(), logged)
        flags = zip(found["arrived"].tolist(), found["clipped"].tolist(), strict=True)
        for result, (arrived, clipped) in zip(results, flags, strict=True):
            yield result, stack.size, arrived, clipped
