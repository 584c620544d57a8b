"""How many test examples an accuracy is measured on, and whether an interval is finer than one."""

import math

from flfast.report.content import Content
from flfast.report.formats import count, is_accuracy
from flfast.results.history import Row
from flfast.results.runs import RunRecord, partition

_NUMBER = {"global": "num_central_test", "local": "num_test", "personal": "num_test"}
_NUMBER |= {"finetuned": "num_test", "val": "num_val", "personal_val": "num_val"}
"""Key of `partition.json` with the number of examples, by view."""


def num_examples(run: RunRecord, column: str) -> int:
    """Examples that a column of a run is measured on; 0 if the run does not say so."""
    found = partition(run).get(_NUMBER.get(column.partition("/")[0], ""), 0)
    share = run.config.get("eval_examples", 1.0)
    return math.ceil(int(found) * (share if isinstance(share, float) else 1.0))


def fact(content: Content) -> str:
    """Test examples of the criterion, one number or the smallest and the largest; may be empty."""
    ends = _ends(content)
    return "" if not ends else " to ".join(count(n) for n in dict.fromkeys(ends))


def warning(content: Content) -> str:
    """The sentence about intervals that are narrower than one example is worth; may be empty."""
    ends = _ends(content)
    if not ends or content.criterion is None or not is_accuracy(content.criterion.name):
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
