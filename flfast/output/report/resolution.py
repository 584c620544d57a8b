"""How many test examples an accuracy is measured on, and whether an interval is finer than one."""

import math

import numpy as np

from flfast.output.report.content import Content
from flfast.output.results.formats import count, in_percent
from flfast.output.results.history import Row
from flfast.output.results.runs import RunRecord, partition
from flfast.state.options import num_of_share

_SPLITS = {"local": "test", "personal": "test", "finetuned": "test"}
_SPLITS |= {"val": "val", "personal_val": "val"}
"""Split of each client, by view."""


def num_examples(run: RunRecord, column: str) -> int:
    """Examples that a column of a run is measured on; 0 if the run does not say so."""
    found, view = partition(run), column.partition("/")[0]
    share = run.config.get("eval_examples", 1.0)
    share = share if isinstance(share, float) else 1.0
    if view == "global":
        sizes = [found.get("num_central_test", 0)]
    elif share == 1.0:
        sizes = [found.get(f"num_{_SPLITS.get(view)}", 0)]
    else:  # each client rounds up
        clients = found.get("clients", [])
        listed = len(clients) == found.get("num_clients")
        sizes = [client.get(_SPLITS.get(view), 0) for client in clients] if listed else [0]
    known = all(isinstance(size, int) for size in sizes)
    return int(num_of_share(share, np.array(sizes if known else [0])).sum())


def fact(content: Content) -> str:
    """Test examples of the criterion, one number or the smallest and the largest; may be empty."""
    ends = _ends(content)
    return "" if not ends else " to ".join(count(n) for n in dict.fromkeys(ends))


def warning(content: Content) -> str:
    """The sentence about intervals that are narrower than one example is worth; may be empty."""
    ends = _ends(content)
    if not ends or content.criterion is None or not in_percent(content.criterion.name):
        return ""
    one = 1 / ends[0]
    fine = [
        name
        for name, found in content.intervals.items()
        if math.isfinite(found.low) and found.high - found.low < one
    ]
    if not fine:
        return ""
    return (
        f"One of {ends[0]:,} test examples is worth {100 * one:.2g} points; the interval of "
        f"{', '.join(fine)} is narrower than that, which few seeds may give by chance."
    )


def _ends(content: Content) -> tuple[int, int] | None:
    if content.criterion is None:
        return None
    runs = [run for run in content.runs if run.counts]
    found = [n for run in runs if (n := num_examples(run, _column(content, run.history)))]
    return (min(found), max(found)) if found else None


def _column(content: Content, history: list[Row]) -> str:
    assert content.criterion is not None
    return content.criterion.column(history)
