"""The tables of docs/what-leaves.md, from two rounds of every algorithm with a tiny model.

`python -m docs.what_leaves` writes them anew. No cell is stated by hand: clients are watched while
they train, and their messages are compared with what they and the others have.
"""

import inspect
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from docs.disclosures import labels_in, others_in, weight
from docs.families import filled, markdown
from docs.watched_rounds import (
    CLASSES,
    CLIENTS,
    FEATURES,
    PUBLIC,
    SHOWN,
    Seen,
    capabilities,
    named,
    run,
)
from flfast.algorithms.contract import Part
from flfast.channel.channel import Channel
from flfast.channel.compression.float16 import float16
from flfast.channel.privacy.privacy import BOUNDED, OF_STEPS, OF_SUMS, OF_UPLOADS, Privacy
from flfast.channel.secure.secure import HIDING
from flfast.channel.sent import Sender, Sent
from flfast.channel.sides import ClientSide
from flfast.datamodules.remote_data import Schema
from flfast.setup.real_clients import Greeting
from flfast.state.tree import Tree, named_leaves
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
_AXES = {FEATURES: "F", CLASSES: "C", CLIENTS: "N", CLIENTS + 1: "N + 1", PUBLIC: "P"}
_RULES = {"mean": "", "sum": "sum of ", "rows": "single "}


def page() -> str:
    """The page, with tables that are up to date."""
    return filled(PAGE.read_text("utf-8"), table, **_OTHERS)


def table(names: Iterable[str]) -> str:
    """A row for every algorithm."""
    return markdown(COLUMNS, *(row(name) for name in names))


def row(name: str) -> list[str]:
    """Cells of an algorithm."""
    rounds, found = run(partial(named, name)), capabilities(name)
    own = [seen for seen in rounds.seen if seen.result.client_id == SHOWN]
    trained = [seen for seen in own if seen.algorithm.name == rounds.algorithm.name]
    calls = {seen.algorithm.name: seen for seen in own}.values()
    if missing := {call.name for call in rounds.algorithm.cohort_calls} - {
        c.algorithm.name for c in calls
    }:
        raise ValueError(f"algorithm={name}: two rounds are not enough to see {missing}")
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
    rows = [
        [*cells, ", ".join(o for o, other in sent.items() if _differ(field, seen.sent, other))]
        for field, cells in zip(Sent._fields, _meanings(Sent), strict=True)
    ]
    return markdown(["field", "what it is", "changed by"], *rows)


def greeting_table() -> str:
    """A row for every field of `Greeting`, and for what it says of examples."""
    fields = [*_meanings(Greeting), *_meanings(Schema, "examples.")]
    return markdown(["field", "what it is"], *fields)


def _meanings(kind: type, prefix: str = "") -> list[list[str]]:
    """Names and meanings of a class's attributes, from its docstring."""
    text = inspect.getdoc(kind) or ""
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return [[f"`{prefix}{name}`", " ".join(meaning.split())] for name, meaning in found]


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
    return markdown(["task", "metrics", "not weighted means over examples"], *rows)


_OTHERS = {"sent": sent_table, "greeting": greeting_table, "metrics": metrics_table}

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
