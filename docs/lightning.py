"""The table of docs/lightning.md: which algorithm takes which module. From the contract.

`python -m docs.lightning` writes it anew.
"""

import re
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import nn

from docs.families import families, markdown
from docs.watched_rounds import CLASSES, FEATURES, INPUTS, named, run
from flfast.algorithms.contract.own_steps import refused_by
from flfast.lit.task import LocalTask
from flfast.state.weights import read_weights

PAGE = Path(__file__).with_name("lightning.md")
_TABLE = re.compile(r"(<!-- table modules -->\n).*?(\n<!-- /table -->)", re.DOTALL)
_COLUMNS = ["automatic", "by hand, or several optimizers", "the module needs", "`algorithm=`"]
_LAYER = "a last layer that its step calls once"
_LOGITS = "`logits(self, batch)`"


def page() -> str:
    """The page, with a table that is up to date."""
    return _TABLE.sub(rf"\1\n{table()}\n\2", PAGE.read_text("utf-8"))


def table() -> str:
    """A row for all algorithms that take the same modules."""
    rows: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in families():
        rows[row(name)].append(f"`{name}`")
    order = sorted(rows, key=lambda cells: (cells[0] != "yes", cells[1] != "yes", cells))
    return markdown(_COLUMNS, *([*cells, ", ".join(rows[cells])] for cells in order))


def row(name: str) -> tuple[str, str, str]:
    """Cells of an algorithm."""
    model = nn.Sequential(nn.Linear(INPUTS, FEATURES), nn.Tanh(), nn.Linear(FEATURES, CLASSES))
    algorithm = named(name, model)
    if not algorithm.works_for("module"):
        return f"no: it is for {', '.join(algorithm.tasks[:1])}", "no", ""
    why = refused_by(algorithm, read_weights(model))
    asked = asks(name)
    needs = {"features": _LAYER, "logits": _LOGITS}
    return (
        "no: it needs losses of single examples" if "losses" in asked else "yes",
        "yes" if why is None else f"no: it {why}",
        ", ".join(text for method, text in needs.items() if method in asked),
    )


def asks(name: str) -> set[str]:
    """What an algorithm asks its task for in two rounds, beside the loss."""
    asked, inside = set[str](), list[str]()

    def noted(method: str, own: Any, *args: Any, **options: Any) -> Any:
        if not inside:
            asked.add(method)
        inside.append(method)
        try:
            return own(*args, **options)
        finally:
            inside.pop()

    methods = ("__call__", "losses", "logits", "features")
    changed = {m: partial(noted, m, getattr(LocalTask, m)) for m in methods}
    bound: Any = {
        m: lambda *args, _fn=fn, **options: _fn(*args, **options) for m, fn in changed.items()
    }
    with patch.multiple(LocalTask, **bound):
        run(partial(named, name))
    return asked - {"__call__"}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
