"""The tables of docs/what-leaves.md, from two rounds of every algorithm with a tiny model.

`python -m docs.what_leaves` writes them anew. No cell is stated by hand: clients are watched while
they train, and their messages are compared with what they and the others have.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from docs.families import filled, markdown
from docs.watched_rounds import (
    CLASSES,
    CLIENTS,
    FEATURES,
    SHOWN,
    Rounds,
    Seen,
    capabilities,
    named,
    run,
)
from flfast.algorithms.contract import Context, Finished, Part
from flfast.channel.channel import Channel
from flfast.channel.client_side import ClientSide
from flfast.channel.compression.float16 import float16
from flfast.channel.privacy.privacy import BOUNDED, OF_STEPS, OF_SUMS, OF_UPLOADS, Privacy
from flfast.channel.secure.secure import HIDING
from flfast.channel.sent import Sender, Sent
from flfast.state.tree import Tree, named_leaves, part_of
from flfast.state.weights import WEIGHTS
from flfast.tasks.by_name import TASKS

PAGE = Path(__file__).with_name("what-leaves.md")
COLUMNS = [
    *("`algorithm=`", "calls", "up", "weight", "tells of labels", "down"),
    *("of single other clients", "client keeps", "server keeps of each", "refused with"),
]
PROTECTIONS = {
    "`secure`": HIDING,
    "`central`": OF_UPLOADS | OF_SUMS,
    "`local`": OF_UPLOADS | BOUNDED,
    "`dp_sgd`": OF_STEPS,
}
_AXES = {FEATURES: "F", CLASSES: "C", CLIENTS: "N", CLIENTS + 1: "N + 1"}
_RULES = {"mean": "", "sum": "sum of ", "rows": "single "}
_LABELS = ("examples of each class", "classes that it has", "zero for classes that it lacks")
_NEAR, _ROUNDING = 0.05, 1e-4
_MIN_ELEMENTS = 10  # fewer numbers may agree by chance


def page() -> str:
    """The page, with tables that are up to date."""
    return filled(PAGE.read_text("utf-8"), table, sent=sent_table, metrics=metrics_table)


def table(names: Iterable[str]) -> str:
    """A row for every algorithm."""
    return markdown(COLUMNS, *(row(name) for name in names))


def row(name: str) -> list[str]:
    """Cells of an algorithm."""
    rounds, found = run(partial(named, name)), capabilities(name)
    own = [seen for seen in rounds.seen if seen.result.client_id == SHOWN]
    trained = [seen for seen in own if seen.algorithm.name == rounds.algorithm.name]
    calls = {seen.algorithm.name: seen for seen in own}.values()
    in_round = [sum(seen.round_idx == number for seen in own) for number in (1, 2)]
    down = dict.fromkeys(filter(None, (sent_down(seen, rounds.initial) for seen in calls)))
    kept = described(rounds.record, rounds.initial), by_client(rounds.server)
    refused = (
        option
        for option, asked in PROTECTIONS.items()
        if asked.needs & found.breaks.keys() or found.needs & asked.breaks.keys()
    )
    return [
        f"`{name}`",
        str(max(in_round)),
        "; ".join(filter(None, (sent_up(seen, rounds.initial) for seen in calls))) or "nothing",
        weight(trained[-1]),
        ", ".join(part for call in calls for part in labels_in(call.algorithm.name, rounds)),
        "; ".join(down) or "nothing",
        ", ".join(others_in(trained[-1], rounds)),
        described(rounds.state, rounds.initial),
        ", ".join(filter(None, kept)),
        ", ".join(refused),
    ]


def sent_up(seen: Seen, initial: Tree) -> str:
    """Parts of an upload, and how the server combines each of them."""
    cells = []
    for name, part in seen.sent.upload.items():
        how = seen.algorithm.parts.get(name, Part())
        if shown := described({name: part}, initial):
            over = f" / `{how.over}`" if how.over else ""
            cells.append(f"{_RULES[how.rule]}{shown}{over}{'' if how.learned else ' (count)'}")
    return ", ".join(cells)


def sent_down(seen: Seen, initial: Tree) -> str:
    """Parts of a download; those that the server makes for this client come last."""
    download, own = seen.result.context.server, seen.made_for_it
    shared = described({name: part for name, part in download.items() if name not in own}, initial)
    single = described({name: part for name, part in download.items() if name in own}, initial)
    return ", ".join(filter(None, (shared, single and f"for it: {single}")))


def weight(seen: Seen) -> str:
    """The weight of an upload."""
    algorithm, (done, context) = seen.algorithm, _with_other_labels(seen)
    if algorithm.weight is None:
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


def described(tree: Tree, initial: Tree) -> str:
    """Names of parts; behind each what it is like: weights of the model, or a shape."""
    cells = []
    for name, part in tree.items():
        if name in WEIGHTS:
            cells += [f"{_share(part, initial[name])}`{name}`"] if part else []
        elif not isinstance(part, dict):
            cells.append(f"`{name}`{_shape(part)}")
        elif inner := described(_as_weights(part, initial), initial):
            cells.append(f"`{name}` ({inner})")
    return ", ".join(cells)


def _as_weights(part: Tree, initial: Tree) -> Tree:
    return {"params": part} if part.keys() & initial["params"].keys() else part


def _share(part: Tree, whole: Tree) -> str:
    """How weights differ from those of the model."""
    several = any(name in whole and leaf.ndim > whole[name].ndim for name, leaf in part.items())
    share = "part of " if part.keys() < whole.keys() else ""
    if part.keys() - whole.keys():
        share = "more than " if part.keys() & whole.keys() else "other "
    return f"several {share}" if several else share


def _shape(leaf: Tensor) -> str:
    return f" [{', '.join(_AXES.get(size, str(size)) for size in leaf.shape)}]"


def by_client(server: Tree) -> str:
    """Parts of the server state with a row for every client."""
    rows = {
        name: leaf
        for name, leaf in server.items()
        if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == CLIENTS
    }
    return ", ".join(f"`{name}`{_shape(leaf)}" for name, leaf in rows.items())


def sent_table() -> str:
    """A row for every field of `Sent`: its docstring, and which options change its value."""
    text = inspect.getdoc(Sent) or ""
    meanings = dict(re.findall(r"^ +(\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE))
    seen = run(partial(named, "fedavg")).seen[-1]
    clips = Privacy("", clip_norm=1e-3)
    channels = {
        "`central`": Channel(privacy=replace(clips, central_noise=lambda like, *_: like)),
        "`local`": Channel(privacy=replace(clips, local_multiplier=1.0)),
        "`compression`": Channel(compression=float16(downloads=False)),
    }
    sender = Sender(seen.result.client_id, seen.round_idx)
    sent = {
        option: ClientSide(seen.algorithm, channel)(seen.result, sender, {}).sent
        for option, channel in channels.items()
    }
    rows = []
    for field in Sent._fields:
        changed = [o for o, other in sent.items() if _differ(field, seen.sent, other)]
        rows.append([f"`{field}`", " ".join(meanings[field].split()), ", ".join(changed)])
    return markdown(["field", "what it is", "changed by"], *rows)


def _differ(field: str, plain: Sent, other: Sent) -> bool:
    before, after = getattr(plain, field), getattr(other, field)
    if field != "upload":
        return bool(before != after)
    pairs = zip(named_leaves(before), named_leaves(after), strict=True)
    return any(b.is_meta or not torch.equal(a, b) for (_, a), (_, b) in pairs)


def metrics_table() -> str:
    """A row for every task: its metrics."""
    rows = (
        [f"`{task.name}`", *(", ".join(f"`{n}`" for n in m) for m in (task.metrics, task.pooled))]
        for task in TASKS.values()
    )
    return markdown(["task", "metrics", "not means over examples"], *rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
