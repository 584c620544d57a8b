"""Names of metrics as a user's module logs them, wherever they are read, shown and compared."""

import io
import math
import string
from html import escape

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from run_folders import record, write_run

from flfast.checkpoints.policy import best_round
from flfast.federation.stops import plateau, target
from flfast.output.callbacks.summary import _rounds, _table
from flfast.output.loggers.csv import RoundCSVLogger
from flfast.output.report.content import Content
from flfast.output.report.outcome_tables import metric_columns
from flfast.output.report.page import render
from flfast.output.results.columns import is_metric
from flfast.output.results.criterion import choose_criterion
from flfast.output.results.history import metric_names, score_names, validation_column
from flfast.output.results.runs import last_clients, read_run
from flfast.output.results.table import read_history
from flfast.output.watch.view import score_columns
from flfast.tasks.names import METRICS, falls, headline, in_order

LETTERS = string.ascii_letters + string.digits + "/_-. []$%<&é"
NAMES = st.lists(st.text(LETTERS, min_size=1, max_size=12), min_size=1, max_size=5, unique=True)
VALUES = st.lists(st.floats(-100, 100), min_size=3, max_size=3, unique=True)
ENDS = ("_std", "_worst10")


def rows_of(names, values):
    """Rows 0 to 3 of a run whose module logs these names; the spreads as `summary` names them."""
    rows = []
    for number, value in enumerate([0.0, *values]):
        row = {f"{view}/{name}": value for view in ("global", "local", "val") for name in names}
        for column in [f"{view}/{name}" for view in ("local", "val") for name in names]:
            for end in ENDS:
                row.setdefault(column + end, 0.25)
        training = {"train/loss": 1.0, "train/kl": 2.0, "time/train_s": 1.0} if number else {}
        rows.append({"round": number, **training, **row, "time/eval_s": 0.5})
    return rows


def text_of(table):
    console = Console(file=io.StringIO(), width=500)
    console.print(table)
    return console.file.getvalue()


@given(NAMES, VALUES)
@settings(max_examples=25)
def test_names_are_columns_of_the_table_the_file_and_the_report(tmp_path_factory, names, values):
    folder, rows = tmp_path_factory.mktemp("run"), rows_of(names, values)
    clients = [
        {"round": 3, "client_id": k, **{f"local/{name}": values[k] for name in names}}
        for k in range(3)
    ]
    write_run(folder / "0", config={"task": "module", "rounds": 3}, rows=rows, clients=clients)
    logger = RoundCSVLogger(save_dir=str(folder / "1"))
    logger.log_hyperparams({"task": "module"})
    for row in rows:
        logger.log_metrics(row, step=row["round"])
    history = read_history(folder / "1" / "metrics.csv")
    measured = [column for row in rows for column in row if is_metric(column)]
    assert {c for c in history[0] if is_metric(c)} == {*measured}, "and no empty column"
    assert [*history[0]].index("train/loss") < [*history[0]].index(measured[0])
    assert [*history[0]].index(measured[0]) < [*history[0]].index("time/train_s")
    for found in (rows, history):
        assert metric_names([found]) == in_order(names)
        shown = text_of(_table(found, _rounds(found)))
        assert all(f"{view}/{name}" in shown for view in ("global", "val") for name in names)
        others = [name for name in in_order(names) if name != "loss"]
        assert score_names([found]) == others
        watched = {c.partition("/")[2] for c in score_columns(found)} - {"loss"}
        assert watched == {*others[:3]}
    assert last_clients(read_run(folder / "0")), "their evaluation is one"
    page = render(Content([read_run(folder / "0")]))
    assert all(escape(name) in page for name in names)
    assert {c.partition("/")[2] for c in metric_columns([read_run(folder / "0")])} >= {*others}


@given(NAMES, VALUES)
def test_runs_are_compared_stopped_and_kept_by_any_name(names, values):
    rows, choices = rows_of(names, values), {"algorithm": "fedavg"}
    best = headline(names)
    assert validation_column(rows) == f"val/{best}"
    run = record(rows, choices)
    found = choose_criterion([run])
    assert found.columns[0].partition("/")[2] == best
    assert found.rises is not falls(best)
    for name in names:
        column = f"val/{name}"
        config = {"task": "module", "optimized_metric": column}
        chosen = choose_criterion([run._replace(config=config)])
        assert chosen.columns == (f"global/{name}",)
        end = min(values) if falls(column) else max(values)
        assert best_round(rows, column) == 1 + values.index(end)
        waits = 3 - best_round(rows, column)
        ended = plateau(metric=column, patience=1 + waits, min_change=0.0)(rows)
        assert ended is None
        ended = plateau(metric=column, patience=max(1, waits), min_change=0.0)(rows)
        assert (ended is None) == (waits == 0)
        assert target(metric=column, value=values[-1])(rows) is not None
        worse = math.nextafter(values[-1], -math.inf if falls(column) else math.inf)
        assert target(metric=column, value=worse)(rows) is None


def test_a_name_like_a_spread_is_a_metric_of_its_own():
    rows = rows_of(["pred", "pred_std", "worst10"], [1.0, 2.0, 3.0])
    assert metric_names([rows]) == ["pred", "pred_std", "worst10"]
    assert rows[1]["local/pred_std"] == 1.0


def test_means_of_a_familys_models_are_no_metrics():
    row = {"personal/accuracy": 0.5, "personal/accuracy_mlp": 0.25, "time/train_s_mlp": 1.0}
    assert metric_names([[{"round": 1, **row}]]) == ["accuracy"]
    row["personal/accuracy_top5"] = 0.5
    assert metric_names([[{"round": 1, **row}]]) == ["accuracy", "accuracy_top5"]


def test_tasks_of_flfast_show_their_headline_alone():
    for task, names in [(t, m) for t, m in METRICS.items() if m]:
        row = {f"{view}/{name}": 0.5 for view in ("global", "local") for name in names}
        row |= {f"local/{headline(names)}{end}": 0.5 for end in ENDS}
        score = [headline(names)] * (headline(names) != "loss")
        assert score_names([[{"round": 0, **row}]]) == score, task
