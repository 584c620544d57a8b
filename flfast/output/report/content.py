"""What a report is about: runs, their settings, and the criterion that compares them."""

import math
from collections.abc import Sequence
from functools import cached_property

from flfast.output.results.charts import Line, LineChart
from flfast.output.results.criterion import choose_criterion
from flfast.output.results.formats import in_percent
from flfast.output.results.lines import (
    BYTES,
    ROUNDS,
    Over,
    curve,
    mean_line,
    over_seeds,
    rounds_and_time,
)
from flfast.output.results.runs import RunRecord
from flfast.output.results.settings import RunGroup, differing_keys, group_runs
from flfast.output.results.statistics import Comparison, Interval, compare_all

LONGEST_NAME = 36


class Content:
    """Runs, at least one, grouped by settings."""

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        if len(runs) == 1:  # among others, rounds that are missing would look like a bad setting
            runs = [runs[0]._replace(counts=bool(runs[0].history))]
        self.runs = list(runs)
        self.keys = differing_keys(runs)
        self.settings, self.left_out = group_runs(runs)
        self.criterion = choose_criterion(runs)
        self.names = _names(self.settings)

    @property
    def named(self) -> list[tuple[str, RunGroup]]:
        """Settings with their names."""
        return list(zip(self.names, self.settings, strict=True))

    @property
    def single(self) -> bool:
        """Whether there is one run alone."""
        return len(self.runs) == 1

    @cached_property
    def results(self) -> dict[str, dict[str, float]]:
        """Last finite value of the criterion by seed, by name of the setting."""
        found: dict[str, dict[str, float]] = {}
        for name, setting in self.named:
            values = {run.seed: self.criterion.last(run.history) for run in setting.finished}
            found[name] = {seed: v for seed, v in values.items() if math.isfinite(v)}
        return found

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """Mean of the criterion and its interval, by name of the setting."""
        column = self.criterion.name
        return {name: over_seeds(column, values.values()) for name, values in self.results.items()}

    @property
    def in_percent(self) -> bool:
        """Whether values of the criterion are shown in percent."""
        means = [mean for mean, *_ in self.intervals.values()]
        return in_percent(self.criterion.name, means)

    def column(self, name: str) -> str:
        """Column of the criterion that a setting's finished runs have, or several of them."""
        runs = self.settings[self.names.index(name)].finished
        return " or ".join(dict.fromkeys(self.criterion.column(run.history) for run in runs))

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Tests between all pairs of settings that have results."""
        return compare_all({name: values for name, values in self.results.items() if values})

    @cached_property
    def ranking(self) -> list[str]:
        """Names of settings that have results, the best mean first."""
        sign = -1 if self.criterion.rises else 1
        found = [name for name, values in self.results.items() if values]
        return sorted(found, key=lambda name: sign * self.intervals[name].mean)

    @cached_property
    def target(self) -> float | None:
        """The best value of the criterion that all runs reach, see `Criterion.common_target`.

        The training loss is no target: it is of each round's cohort, so its lowest value is luck.
        """
        if self.criterion.name == "train/loss":
            return None
        return self.criterion.common_target(run.history for run in self.runs if run.counts)

    def chart(self, title: str, column: str = "", over: Over = ROUNDS) -> LineChart:
        """Mean over seeds of a column, or of the criterion, with its interval, by setting."""
        lines = [self._line(place, column, over) for place in range(len(self.settings))]
        name = column or self.criterion.name
        return LineChart(title + over.title, lines, over.name, name, log=over.log)

    def _line(self, place: int, column: str, over: Over) -> Line:
        runs = self.settings[place].finished
        columns = [column or self.criterion.column(run.history) for run in runs]
        curves = [curve(run.history, c, over) for run, c in zip(runs, columns, strict=True)]
        return mean_line(self.names[place], " or ".join(columns), curves, over)

    @cached_property
    def criterion_charts(self) -> list[LineChart]:
        """The criterion over rounds, and over virtual time if any run has a clock.

        If runs differ in their compression, over the bytes that clients have uploaded, too.
        """
        sends = any(key.partition(".")[0] == "compression" for key in self.keys)
        overs = [*rounds_and_time([run.history for run in self.runs]), *[BYTES] * sends]
        charts = [self.chart(self.criterion.name, over=over) for over in overs]
        return [chart for chart in charts if any(line.x for line in chart.lines)]


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
