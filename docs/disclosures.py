"""What watched messages tell of clients: of their own labels, and of what other clients made."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from docs.watched_rounds import CLASSES, SHOWN, Rounds, Seen
from flfast.algorithms.contract import Context, Finished
from flfast.state.tree import Tree, named_leaves, part_of
from flfast.state.weights import WEIGHTS

_LABELS = ("examples of each class", "classes that it has", "zero for classes that it lacks")
_NEAR, _ROUNDING = 0.05, 1e-4
_MIN_ELEMENTS = 10  # fewer numbers may agree by chance


def weight(seen: Seen) -> str:
    """The weight of an upload."""
    algorithm, (done, context) = seen.algorithm, _with_other_labels(seen)
    if not algorithm.has_own_weights:
        return "examples" if algorithm.weighting == "samples" else "1"
    if algorithm.weight_of(done, context) != seen.sent.weight:
        return "own, from label counts"
    return "own"


def labels_in(call: str, rounds: Rounds) -> Iterator[str]:
    """What uploads of a call tell of clients' labels, beside changes of weights."""
    every = [seen for seen in rounds.seen if seen.algorithm.name == call]
    again = [seen.algorithm.finish(*_with_other_labels(seen))[0] for seen in every]
    for name, part in every[0].sent.upload.items():
        if name in WEIGHTS:
            continue
        paths = [path for path, _ in named_leaves({name: part})]
        sent = [dict(named_leaves({name: seen.sent.upload[name]})) for seen in every]
        for what in _LABELS:
            if any(
                all(
                    _tells(what, own[path], seen.labels)
                    for own, seen in zip(sent, every, strict=True)
                )
                for path in paths
            ):
                yield f"{what}: `{name}`"
                break
        else:
            others = [dict(named_leaves({name: upload[name]})) for upload in again]
            pairs = [*zip(sent, others, strict=True)]
            if any(not torch.equal(a[path], b[path]) for a, b in pairs for path in paths):
                yield f"made of label counts: `{name}`"


def _tells(what: str, leaf: Tensor, labels: Tensor) -> bool:
    """Whether a leaf with a row for each class tells something of a client's labels."""
    if not leaf.ndim or len(leaf) != len(labels):
        return False
    rows = leaf.double().reshape(len(labels), -1)
    if what == "zero for classes that it lacks":
        return torch.equal((rows == 0).all(1), labels == 0)
    if rows.shape[1] != 1 or not rows.sum():
        return False
    if what == "examples of each class":
        return torch.allclose(rows[:, 0] / rows.sum(), labels / labels.sum(), atol=1e-6)
    return torch.equal(rows[:, 0], (labels > 0).double())


def _with_other_labels(seen: Seen) -> tuple[Finished, Context]:
    """What a client finished with, as if it had other numbers of examples of each class."""
    done, context = seen.result.done, seen.result.context
    if "labels" not in context.facts:
        return done, context
    others = seen.labels.flip(0) + torch.arange(len(seen.labels))
    return done, context._replace(facts={**context.facts, "labels": others})


def others_in(seen: Seen, rounds: Rounds) -> list[str]:
    """What a download of the second round tells of single other clients."""
    before = [
        one
        for one in rounds.seen
        if one.round_idx == 1 and one.algorithm.name == seen.algorithm.name
    ]
    own = [one.result.client_id for one in before].index(SHOWN)
    models = [
        part_of(one.result.done.weights["params"], rounds.initial["params"]) for one in before
    ]
    found = ["their weights"] if _holds_one(seen, models, own, by_class=False) else []
    for name in before[own].sent.upload.keys() - {*WEIGHTS}:
        parts = [{name: one.sent.upload[name]} for one in before]
        found += [f"`{name}`"] if _holds_one(seen, parts, own, by_class=True) else []
    return sorted(found)


def _holds_one(seen: Seen, trees: Sequence[Tree], own: int, *, by_class: bool) -> bool:
    """Whether a download has almost all leaves of another client's tree that it has room for.

    Almost: within a twentieth of the distance of a leaf to every other client's. If `by_class`,
    the row of one class is enough, since a client may lack the others.
    """
    download = [leaf.double() for _, leaf in named_leaves(seen.result.context.server)]
    held = []  # for each leaf: which clients' it is
    for every in zip(*(named_leaves(tree) for tree in trees), strict=True):
        leaves = torch.stack([leaf.double() for _, leaf in every])
        found = [
            x for x in download if x.shape[max(0, x.ndim - leaves.ndim + 1) :] == leaves[0].shape
        ]
        differ = (leaves - leaves.mean(0)).norm() > _ROUNDING * leaves.norm()
        if found and differ and leaves[0].numel() >= _MIN_ELEMENTS:
            num_rows = CLASSES if by_class and leaves.shape[1] == CLASSES else 1
            near = [_near(leaf, leaves.reshape(len(every), num_rows, -1)) for leaf in found]
            held.append(torch.stack(near).any(0))
    others = torch.arange(len(trees)) != own
    return bool(held) and bool((torch.stack(held).all(0) & others).any())


def _near(leaf: Tensor, leaves: Tensor) -> Tensor:
    """To which clients' leaves [K, R, D] a leaf [..., R, D] is near, in any row: bool [K]."""
    theirs = leaves.transpose(0, 1)  # [R, K, D]
    itself = torch.diag(torch.full((len(leaves),), torch.inf))
    # Rows of classes that a client lacks are zero, and near to anything small.
    apart = (torch.cdist(theirs, theirs) + itself).amin(2).minimum(theirs.norm(dim=2))
    found = leaf.reshape(-1, *leaves.shape[1:]).transpose(0, 1)
    return (torch.cdist(found, theirs) < _NEAR * apart[:, None]).any(1).any(0)
