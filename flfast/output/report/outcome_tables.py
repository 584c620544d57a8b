"""Tables of runs and of settings, for the page and for the screen after a sweep."""

import math
from collections.abc import Sequence

from flfast.output.report.content import Content
from flfast.output.results.charts import DataTable
from flfast.output.results.criterion import Spent, spent_until
from flfast.output.results.formats import readable, value
from flfast.output.results.history import clock, is_measured, last_value, score_names, total
from flfast.output.results.runs import RunRecord
from flfast.output.results.settings import SEED, flat_settings
from flfast.output.results.statistics import mean_interval
from flfast.tasks.names import SCORES

_VIEWS = ("global", "local", "personal", "val", "personal_val")

NO_NUMBERS = "no numbers"
"""Cell of a run that has finished and wrote no rows."""


def runs_table(content: Content, caption: str, names: Sequence[str], kind: str) -> DataTable:
    """A row for each run: what differs, its last values, and what it cost or what became of it.

    `names` are in the order of the runs; `kind` is what a name is, such as `job`.
    """
    keys, metrics = differing(content), _measured_metrics(content)
    # Results of the sweep are then of different models, which the table has to say.
    mixed = len({run.optimized for run in content.runs if run.counts}) > 1
    headings = [kind, *keys, *["optimized"] * mixed]
    words = len(headings)
    headings += [*metrics, *_target_headings(content), "rounds", "time"]
    rows = []
    for name, run in zip(names, content.runs, strict=True):
        settings, (rounds, seconds) = flat_settings(run), costs(run)
        cells = [name, *(settings.get(key, "-") for key in keys)]
        cells += [run.optimized if run.counts else "-"] * mixed
        lost = run.outcome if run.outcome != "finished" else NO_NUMBERS * (not run.history)
        planned = f" of {run.config['rounds']}" if lost and "rounds" in run.config else ""
        done = f"{rounds}{planned}" if run.history else "-"
        cells += _cells([run], metrics, content)
        rows.append([*cells, done, lost or f"{seconds:.1f} s"])
    return DataTable(caption, headings, rows, words)


def settings_table(content: Content, caption: str, *, named: bool = False) -> DataTable:
    """A row for each setting: its values of what differs, and means over seeds.

    If `named`, the first column has the settings' names.
    """
    metrics = _measured_metrics(content)
    headings = [*["setting"] * named, *content.keys]
    words = len(headings)
    headings += [*metrics, *_target_headings(content), "seeds"]
    rows = []
    for name, setting in content.named:
        done = setting.finished
        cells = _cells(done, metrics, content)
        rows.append([*[name] * named, *setting.values.values(), *cells, f"{len(done)}"])
    return DataTable(caption, headings, rows, words)


def differing(content: Content) -> list[str]:
    """Keys in which runs differ, the seed last."""
    return [*content.keys, *[SEED] * (len({run.seed for run in content.runs}) > 1)]


def spent(runs: Sequence[RunRecord], content: Content) -> list[Spent]:
    """What runs spend until the target; empty if there is none, or no run has a clock."""
    if content.target is None or not any(clock(run.history) for run in content.runs):
        return []
    return [spent_until(run.history, content.criterion, content.target) for run in runs]


def costs(run: RunRecord) -> tuple[float, float]:
    """Rounds, and seconds of training and evaluation; NaN without rows."""
    if not run.history:
        return math.nan, math.nan
    return int(run.history[-1]["round"]), total(run.history, "time/train_s", "time/eval_s")


def metric_columns(runs: Sequence[RunRecord], most: int | None = None) -> list[str]:
    """Columns of scores and losses; of users' modules of `most` of their metrics, or of all."""
    histories = [run.history for run in runs]
    found = score_names(histories)
    known = {*found} <= {*SCORES}
    names = (*SCORES, "loss") if known else (*found[:most], "loss")
    columns = [f"{view}/{name}" for name in names for view in _VIEWS]
    return [column for column in columns if known or is_measured(histories, column)]


def _measured_metrics(content: Content) -> list[str]:
    """Scores, what runs are compared by, and the global loss; without scores all losses."""
    kept = content.criterion.columns
    columns = dict.fromkeys((*metric_columns(content.runs, 3), *kept))
    found = [c for c in columns if is_measured((run.history for run in content.runs), c)]
    scores = [column for column in found if not column.endswith("/loss")]
    return [c for c in found if c in (*scores, *kept, "global/loss") or not scores]


def _cells(runs: Sequence[RunRecord], metrics: Sequence[str], content: Content) -> list[str]:
    """Means and standard deviations; of what the target costs no mean if a run misses it."""
    cells = []
    for metric in metrics:
        found = mean_interval([last_value(run.history, metric) for run in runs])
        cells.append(value(metric, found.mean, found.std))
    until = spent(runs, content)
    if not until or any(math.isnan(one.rounds) for one in until):
        return cells + ["-"] * len(_target_headings(content))
    rounds = mean_interval([one.rounds for one in until])
    virtual = mean_interval([one.virtual_seconds for one in until])
    deviation = f" ± {rounds.std:.1f}" if math.isfinite(rounds.std) else ""
    return [*cells, f"{rounds.mean:,.4g}{deviation}", readable(virtual.mean, virtual.std)]


def _target_headings(content: Content) -> list[str]:
    if content.target is None or not spent(content.runs, content):
        return []
    goal = value(content.criterion.name, content.target).replace(" ", "\N{NO-BREAK SPACE}")
    return [f"rounds to {goal}", f"virtual time to {goal}"]
