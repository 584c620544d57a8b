"""What a report is about: runs, their settings, and the criterion that compares them."""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property

from flfast.output.report.formats import is_accuracy
from flfast.output.report.line_chart import Line
from flfast.output.results.criterion import Criterion, choose_criterion
from flfast.output.results.history import series
from flfast.output.results.runs import RunRecord
from flfast.output.results.settings import RunGroup, differing_keys, group_runs
from flfast.output.results.statistics import Comparison, Interval, compare_all, mean_interval

LONGEST_NAME = 36


class Content:
    """Runs, grouped by settings.

    Args:
        runs: at least one.
    """

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        if len(runs) == 1:  # among others, rounds that are missing would look like a bad setting
            runs = [runs[0]._replace(counts=bool(runs[0].history))]
        self.runs = list(runs)
        self.keys = differing_keys(runs)
        self.settings, self.left_out = group_runs(runs)
        self.criterion: Criterion | None = choose_criterion(runs)
        self.names = _names(self.settings)

    @property
    def single(self) -> bool:
        """Whether there is one run alone."""
        return len(self.runs) == 1

    @cached_property
    def results(self) -> dict[str, dict[str, float]]:
        """Last finite value of the criterion by seed, by name of the setting."""
        found: dict[str, dict[str, float]] = {}
        for name, setting in zip(self.names, self.settings, strict=True):
            runs = setting.finished if self.criterion else []
            values = {run.seed: self.criterion.last(run.history) for run in runs if self.criterion}
            found[name] = {seed: v for seed, v in values.items() if math.isfinite(v)}
        return found

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """Mean of the criterion and its interval, by name of the setting."""
        column = self.criterion.name if self.criterion else ""
        return {name: over_seeds(column, values.values()) for name, values in self.results.items()}

    def column(self, name: str) -> str:
        """Column of the criterion that a setting's finished runs have, or several of them."""
        if self.criterion is None:
            return ""
        runs = self.settings[self.names.index(name)].finished
        return " or ".join(dict.fromkeys(self.criterion.column(run.history) for run in runs))

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Tests between all pairs of settings that have results."""
        return compare_all({name: values for name, values in self.results.items() if values})

    @cached_property
    def ranking(self) -> list[str]:
        """Names of settings that have results, the best mean first."""
        sign = -1 if self.criterion and self.criterion.rises else 1
        found = [name for name, values in self.results.items() if values]
        return sorted(found, key=lambda name: sign * self.intervals[name].mean)

    def mean_line(self, place: int, column: str, name: str | None = None) -> Line:
        """Mean over seeds of a column in each round, with its interval."""
        values: dict[int, list[float]] = {}
        for run in self.settings[place].finished:
            for round_idx, value in zip(*series(run.history, column), strict=True):
                values.setdefault(round_idx, []).append(value)
        rounds = sorted(values)
        found = [over_seeds(column, values[round_idx]) for round_idx in rounds]
        return interval_line(self.names[place] if name is None else name, rounds, found)


def interval_line(name: str, x: Sequence[float], found: Sequence[Interval]) -> Line:
    """A line through means, with their intervals."""
    return Line(name, x, [i.mean for i in found], [i.low for i in found], [i.high for i in found])


def over_seeds(column: str, values: Iterable[float]) -> Interval:
    """The interval of a column's mean over seeds; that of an accuracy is cut to [0, 1]."""
    bounds = (0.0, 1.0) if is_accuracy(column) and "_std" not in column else None
    return mean_interval([*values], bounds)


def _names(settings: Sequence[RunGroup]) -> list[str]:
    """Labels where all are short; else letters, which the table of settings explains."""
    if len(settings) == 1:
        return ["all runs" if len(settings[0].runs) > 1 else "this run"]
    if all(len(s.label) <= LONGEST_NAME for s in settings):
        return [setting.label for setting in settings]
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    if len(settings) <= len(letters):
        return list(letters[: len(settings)])
    return [f"S{number}" for number in range(1, len(settings) + 1)]
