"""Evaluates a saved run; shows and writes metrics, predictions, confusion matrices, clients."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.text import Text

from flfast.commands.saved.evaluation_charts import CHARTS
from flfast.config.errors import ConfigError
from flfast.config.saved_run import SavedRun
from flfast.engines.evaluation.measured_set import MeasuredSet
from flfast.federation.table_rows import client_columns, evaluation_columns
from flfast.output.callbacks.figures import annotate, figure, tick_label
from flfast.output.results.charts import DataTable
from flfast.output.results.formats import value
from flfast.output.results.table import write_csv
from flfast.output.watch.view import on_screen, screen
from flfast.setup.opened_run import OpenedRun, open_run, refused
from flfast.state.messages import naming
from flfast.state.regular_file import make_folder, replacing

_DPI = 150
_MOST_LABELLED = 20
_SINGULAR = {
    "outputs": "predicted",
    "scores": "probability",
    "targets": "target",
    "absolute": "mae",
    "squared": "mse",
    "scaled": "mase",
}

_SPLITS: dict[str, dict[bool, tuple[str, ...]]] = {
    "test": {False: ("global", "local", "new"), True: ("personal",)},
    "val": {False: ("val",), True: ("personal_val",)},
    "train": {False: ("train",), True: ("personal_train",)},
    "global": {False: ("global",), True: ()},
}
"""Names of evaluation sets by split, and by whether clients' own models predict."""

_FINETUNED = ("finetuned", "new_finetuned")


def evaluate(run: OpenedRun, split: str) -> list[MeasuredSet]:
    """Predict all examples of a split; with `finetune_epochs`, `test` also has fine-tuned models.

    Raises:
        ConfigError: if there are no such examples.
    """
    names = _SPLITS[split][run.personal]
    if not names:
        raise ConfigError(f"split={split} with personal=true: allowed: test, val or train")
    passes = [names]
    if split == "test" and run.saved.config.finetune_epochs:
        passes.append(_FINETUNED)
    found = refused(lambda: run.engine.measure(run.server, run.plan, passes))
    if not found:
        raise ConfigError(f"split={split}: there are no such examples; see split.val, split.test")
    return found


def report(saved: SavedRun, options: Mapping[str, str]) -> dict[str, float]:
    """Evaluate a run, print a table and write the files; returns the metrics by column.

    Of the options it reads `split`, `personal`, `predictions` and `output`.

    Raises:
        ConfigError: if the run cannot be opened or evaluated so.
        OSError: if the files cannot be written.
    """
    chosen = options.get("personal")
    run = open_run(saved, personal=None if chosen is None else chosen == "true")
    try:
        sets = evaluate(run, options.get("split", "test"))
    finally:
        refused(run.engine.close)
    folder = Path(options.get("output", saved.folder / "evaluation"))
    make_folder(folder, named="output" in options)
    who = "clients' own models" if run.personal else "the server's model"
    title = f"{run.learner.module.algorithm.name} · {who} · {run.origin}"
    about: dict[str, Any] = {
        "title": title,
        "run": str(saved.folder),
        "model": "personal" if run.personal else "server",
        "weights": run.origin,
        "round": None if saved.model else run.plan.round_idx,
        "split": options.get("split", "test"),
        "finetune_epochs": saved.config.finetune_epochs,
    }
    parquet = options.get("predictions") == "parquet"
    write_all(folder, sets, about, table="parquet" if parquet else "csv")
    console = screen(plain_width=100)
    console.print(Text(title, style="italic"), soft_wrap=True)
    console.print(on_screen(_table(sets)))
    # Soft-wrapped, so that the path can be copied.
    console.print(Text(str(folder), style="bold"), soft_wrap=True)
    return metrics_of(sets)


def _table(sets: Sequence[MeasuredSet]) -> DataTable:
    found, headline = metrics_of(sets), sets[0].metrics.headline
    names = dict.fromkeys(column.partition("/")[2] for column in found)
    rows = [["examples", *(str(len(part.examples)) for part in sets)]]
    for name in sorted(names, key=lambda name: name != headline):
        columns = (f"{part.name}/{name}" for part in sets)
        rows.append([name, *(value(c, found.get(c, math.nan)) for c in columns)])
    return DataTable("", ["", *(f"{part.name}/" for part in sets)], rows)


def metrics_of(sets: Sequence[MeasuredSet]) -> dict[str, float]:
    """Metrics by column, as in `metrics.csv`."""
    rows = (evaluation_columns(part.name, part.metrics) for part in sets)
    return {column: value for row in rows for column, value in row.items()}


def write_all(
    folder: Path,
    sets: Sequence[MeasuredSet],
    about: dict[str, Any],
    *,
    table: Literal["csv", "parquet"],
) -> None:
    """Write the files into a folder; links to files in it are replaced, not followed.

    Raises:
        OSError: if the folder cannot be written.
    """
    text = json.dumps({**about, "metrics": metrics_of(sets)}, indent=1)
    with naming(folder), replacing(folder) as place:
        (place / "metrics.json").write_text(f"{text}\n", encoding="utf-8")
        if sets[0].predictions:
            _write_predictions(place, sets, table)
        _write_clients(place / "clients.csv", sets)
        if draw := CHARTS.get(sets[0].dataset.task_type.name):
            draw(place, sets, title=about["title"])
        if not _are_classes(sets):
            return
        _write_confusion(place / "confusion.csv", sets)
        draw_confusion(place / "confusion.png", sets, title=about["title"])


def prediction_columns(sets: Sequence[MeasuredSet]) -> dict[str, np.ndarray]:
    """A row per set and example; examples of a central set are of client -1.

    `row` is the example's row in the file, if that has rows.
    """
    examples, rows = np.concatenate([part.examples for part in sets]), sets[0].dataset.rows
    return {
        "set": np.concatenate([np.full(len(part.examples), part.name) for part in sets]),
        "example": examples,
        **({} if rows is None else {"row": rows[examples]}),
        "client_id": np.concatenate([part.clients for part in sets]),
        **_class_columns(sets),
    }


def _are_classes(sets: Sequence[MeasuredSet]) -> bool:
    return bool(sets[0].dataset.task_type.name == "classification")


def _class_columns(sets: Sequence[MeasuredSet]) -> dict[str, np.ndarray]:
    """The columns that depend on the task."""
    found = {
        name: np.concatenate([part.predictions[name].numpy() for part in sets])
        for name in sets[0].predictions
    }
    if not _are_classes(sets):
        return {
            f"{_SINGULAR.get(name, name)}{suffix}": column
            for name, values in found.items()
            for suffix, column in _by_column(values)
        }
    scores, targets = found["scores"], found["targets"]
    predicted, names = (
        np.concatenate([part.predicted for part in sets]),
        sets[0].dataset.class_names,
    )
    named = {"target_class": targets, "predicted_class": predicted} if names else {}
    return {
        "target": targets,
        "predicted": predicted,
        **{column: np.array(names)[numbers] for column, numbers in named.items()},
        "probability": scores[np.arange(len(targets)), targets],
        **{f"probability_{c}": scores[:, c] for c in range(scores.shape[1])},
    }


def _by_column(values: np.ndarray) -> Iterable[tuple[str, np.ndarray]]:
    """(suffix of the name, column) of values [m] or [m, C]."""
    if values.ndim == 1:
        return [("", values)]
    return [(f"_{c}", values[:, c]) for c in range(values.shape[1])]


def _write_predictions(folder: Path, sets: Sequence[MeasuredSet], table: str) -> None:
    columns = prediction_columns(sets)
    if table == "parquet":
        import pyarrow as pa  # an extra; `flfast/evaluate.py` has checked that it is there
        import pyarrow.parquet as pq

        pq.write_table(pa.table(columns), folder / "predictions.parquet")
        return
    cells = [
        map("{:.6g}".format, column.tolist()) if column.dtype.kind == "f" else column.tolist()
        for column in columns.values()
    ]
    write_csv(folder / "predictions.csv", columns, zip(*cells, strict=True))


def _write_clients(path: Path, sets: Sequence[MeasuredSet]) -> None:
    rows: dict[int, dict[str, Any]] = {}
    names: dict[str, None] = {}
    for part in sets:
        sizes = part.metrics.num_examples.tolist() * part.metrics.of_clients
        rows_of_set = client_columns(part.name, part.metrics)
        for size, (client_id, columns) in zip(sizes, rows_of_set, strict=True):
            found = {f"{part.name}/examples": size, **columns}
            if part.client_names:
                found["client"] = part.client_names[client_id]
            rows.setdefault(client_id, {}).update(found)
            names.update(dict.fromkeys(found))
    lines = ([k, *(rows[k].get(name, "") for name in names)] for k in sorted(rows))
    write_csv(path, ["client_id", *names], lines)


def _write_confusion(path: Path, sets: Sequence[MeasuredSet]) -> None:
    num_classes = sets[0].predictions["scores"].shape[1]
    lines = (
        [part.name, target, *row]
        for part in sets
        for target, row in enumerate(part.confusion().tolist())
    )
    write_csv(path, ["set", "target", *map(str, range(num_classes))], lines)


def draw_confusion(path: Path, sets: Sequence[MeasuredSet], *, title: str) -> None:
    """A heat map per set: the share of each class's examples that get each prediction."""
    size = (0.5 + 4.6 * len(sets), 5.0)
    with figure(path, size=size, dpi=_DPI, title=title) as picture:
        all_axes = np.atleast_1d(picture.subplots(1, len(sets)))
        for axes, part in zip(all_axes, sets, strict=True):
            counts = part.confusion()
            shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
            image = axes.imshow(shares, vmin=0, vmax=1, cmap="Blues", interpolation="nearest")
            axes.set_title(part.name)
            axes.set_xlabel("predicted class")
            axes.set_ylabel("class")
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            if len(counts) <= _MOST_LABELLED:
                names = part.dataset.class_names or [str(label) for label in range(len(counts))]
                shown = [tick_label(name) for name in names]
                tilted = 90 if part.dataset.class_names else 0
                axes.set_xticks(range(len(counts)), labels=shown, rotation=tilted)
                axes.set_yticks(range(len(counts)), labels=shown)
            if len(counts) <= _MOST_LABELLED // 2:
                annotate(axes, counts, dark=shares > 0.6, size=8)
        picture.colorbar(image, ax=all_axes, label="share of the class", pad=0.02, aspect=40)
