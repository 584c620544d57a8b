"""The first sentences of a report: the best setting, how certain it is, and on how much data."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from flfast.output.report.content import Content
from flfast.output.results.formats import count, difference, interval, p_value, value
from flfast.output.results.history import best_row, number, series, validation_column
from flfast.output.results.runs import RunRecord, partition
from flfast.output.results.statistics import FEWEST_SEEDS, Comparison, Interval
from flfast.state.options import num_of_share
from flfast.tasks.names import falls

_FEW_SEEDS = 5

_SPLITS = {
    "local": "test",
    "personal": "test",
    "finetuned": "test",
    "val": "val",
    "personal_val": "val",
}
"""Split of each client, by view."""


class Verdict(NamedTuple):
    """What the first screen says.

    Attributes:
        result: what came out, one sentence.
        certainty: whether that is certain, and how this is known.
        mark: `certain`, `uncertain`, `too few seeds`, or empty if nothing is compared.
    """

    result: str
    certainty: str
    mark: str


def verdict(content: Content) -> Verdict:
    """The verdict about any set of runs."""
    if not content.ranking:
        return Verdict(
            "No run has a result.", "No run has finished, or none has measured a metric.", ""
        )
    if content.single:
        return _one_run(content)
    if len(content.ranking) == 1:
        return _one_setting(content)
    return _several(content)


def _one_run(content: Content) -> Verdict:
    run = content.runs[0]
    column = content.criterion.column(run.history)
    rounds, values = series(run.history, column)
    result = f"{_title(content)}: {column} {value(column, values[-1])} after round {rounds[-1]}."
    tuned = validation_column(run.history)
    best = best_row(run.history, tuned)
    if best:
        end = "lowest" if falls(tuned) else "highest"
        result += f" {tuned} was {end} in round {best['round']}: "
        result += f"{value(tuned, number(best, tuned))}."
    text = f"One run says nothing about other seeds. Intervals need {FEWEST_SEEDS}: -m seed=0,1,2"
    return Verdict(result, text, "")


def _one_setting(content: Content) -> Verdict:
    name = content.ranking[0]
    found = content.intervals[name]
    result = f"{name}: {_result(content, name)}."
    others = len(content.settings) - 1
    text = "There is nothing to compare: "
    text += f"other settings without a result: {others}. " if others else "one setting. "
    if found.num < FEWEST_SEEDS:
        text += f"Too few seeds for an interval: {found.num}, at least {FEWEST_SEEDS} are needed."
        return Verdict(result, text, "too few seeds")
    return Verdict(result, text.strip(), "")


def _several(content: Content) -> Verdict:
    best, second = content.ranking[:2]
    comparisons = {
        c.lower if c.higher == best else c.higher: c
        for c in content.comparisons
        if best in (c.higher, c.lower)
    }
    common = comparisons[second].difference.num
    certainty, mark = _certainty(best, second, comparisons, content)
    # What is not certain must not sound as if it were.
    kind = "highest" if content.criterion.rises else "lowest"
    result = f"{best} is best: " if mark == "certain" else f"{best} has the {kind} mean: "
    result += f"{_result(content, best)}."
    if common:
        gap = difference(_signed(comparisons[second], best, content), percent=content.in_percent)
        side = "above" if content.criterion.rises else "below"
        result += f" That is {gap} {side} {second}, the next best."
    else:
        result += f" {second} is next, but they have no common seeds."
    return Verdict(result, certainty, mark)


def _certainty(
    best: str, second: str, comparisons: Mapping[str, Comparison], content: Content
) -> tuple[str, str]:
    """A sentence and a mark; `comparisons` are those of the best setting, by the other one."""
    nearest = comparisons[second]
    common = nearest.difference.num
    if common < FEWEST_SEEDS:
        seeds = f"{common} common seed{'s' * (common != 1)}"
        text = f"Whether this is certain cannot be said: {seeds}, and a test needs {FEWEST_SEEDS}."
        return text, "too few seeds"
    tested = sum(not math.isnan(c.adjusted) for c in content.comparisons)
    how = f"paired t-tests over {common} common seeds, Holm's correction for {tested} comparisons"
    how = f"({how if tested > 1 else f'paired t-test over {common} common seeds'})"
    sure = [n for n, c in comparisons.items() if c.certain and _signed(c, best, content).mean > 0]
    p = f"p = {p_value(nearest.adjusted)}".replace("= <", "<")
    if len(sure) == len(comparisons):
        return f"This is certain at the 5 % level: {p} against {second} {how}.", "certain"
    rest = ", ".join(name for name in comparisons if name not in sure)
    if math.isnan(nearest.adjusted):
        text = f"This is not certain: in all seeds the difference to {second} is the same."
    elif second in sure:
        text = f"It is certainly better than {second} ({p}), but not certainly than {rest} {how}."
    else:
        text = f"This is not certain: {p} against {second} {how}."
        text += f" It is certainly better than {', '.join(sure)}." if sure else ""
    if common < _FEW_SEEDS:
        text += f" With {common} seeds, only large differences can be certain."
    return text, "uncertain"


def _signed(comparison: Comparison, best: str, content: Content) -> Interval:
    """The difference best - other for accuracies, other - best for losses."""
    found = comparison.difference
    ahead = (comparison.higher == best) == content.criterion.rises
    return found if ahead else -found


def _result(content: Content, name: str) -> str:
    found, column = content.intervals[name], content.column(name)
    seeds = f"{found.num} seed{'s' * (found.num != 1)}"
    shown = interval(column, found)
    kind = "95 % interval, " if "[" in shown else ""
    return f"{column} {shown} ({kind}{seeds})"


def _title(content: Content) -> str:
    choices = content.runs[0].choices
    words = [choices.get(group, "") for group in ("algorithm", "data", "partition", "model")]
    return " · ".join(word for word in words if word) or "The run"


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


def num_tests(content: Content) -> str:
    """Test examples of the criterion, one number or the smallest and the largest; may be empty."""
    ends = _ends(content)
    return "" if not ends else " to ".join(count(n) for n in dict.fromkeys(ends))


def warning(content: Content) -> str:
    """The sentence about intervals that are narrower than one example is worth; may be empty."""
    ends = _ends(content)
    if not ends or not content.in_percent:
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
    runs = [(run, content.criterion.column(run.history)) for run in content.runs if run.counts]
    found = [n for run, column in runs if (n := num_examples(run, column))]
    return (min(found), max(found)) if found else None
