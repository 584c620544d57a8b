"""Predicts raw examples with a model of a saved run: classes by name, numbers in their unit."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from rich.text import Text
from torch import Tensor

from flfast.config.errors import ConfigError, refused
from flfast.config.saved_run import SavedRun
from flfast.datamodules.fetching import Loading
from flfast.datamodules.preprocessing import FILE, Preprocessing
from flfast.datamodules.raw_data import RawData
from flfast.datamodules.sources.source import RawInputs
from flfast.output.results.table import write_csv
from flfast.output.watch.view import screen
from flfast.setup.saved_model import model_of_file, read_raw
from flfast.state.regular_file import make_folder, replacing


def report(saved: SavedRun, options: Mapping[str, str]) -> Path:
    """Predict the examples of `data.path`, write a table, and return its file.

    Of the options it reads `key`, `client`, and `output`.

    Raises:
        ConfigError: if the run has no such model, or the examples are not like those of training.
        OSError: if the file cannot be written.
    """
    client = options.get("client")
    columns = predict(saved, None, key=options.get("key"), client=client)
    path = Path(options.get("output", saved.folder / "predictions.csv"))
    make_folder(path.parent, named=True)
    cells = [
        map("{:.6g}".format, column.tolist()) if column.dtype.kind == "f" else column.tolist()
        for column in columns.values()
    ]
    with replacing(path.parent) as place:
        write_csv(place / path.name, columns, zip(*cells, strict=True))
    num = len(next(iter(columns.values())))
    console = screen(plain_width=100)
    console.print(Text(f"{num} predictions"), soft_wrap=True)
    console.print(Text(str(path), style="bold"), soft_wrap=True)
    return path


@torch.no_grad()
def predict(
    saved: SavedRun, raw: RawInputs | None, *, key: str | None = None, client: str | None = None
) -> dict[str, np.ndarray]:
    """Columns of predictions, each [N]: which example it is, then what the model says of it.

    Without `raw`, the run's data source reads the examples. `client` is the number of the client
    whose own model predicts.

    Raises:
        ConfigError: as `report`.
    """
    kept = saved.kept
    if kept is None:
        raise ConfigError(
            f"run={saved.folder} has no {FILE}, which says what was made of raw values; allowed: "
            f"a run with callbacks.final_weights"
        )
    if kept.task not in _COLUMNS:
        raise ConfigError(
            f"run={saved.folder}: task={kept.task} has no predictions of single examples; "
            f"allowed: {', '.join(_COLUMNS)}, or flfast.evaluate"
        )
    with refused():
        given = raw or read_raw(saved.config, kept, key)
        data = RawData(given, kept, Loading(**saved.config.loader))
        model = model_of_file(saved, data, _path_of(saved, client))
        dtype = next(model.parameters()).dtype
        batches = data.eval_loader(data.train_clients.indices)
        outputs = [model(data.examples.transform(batch.inputs, dtype=dtype)) for batch in batches]
    return given.about | _COLUMNS[kept.task](torch.cat(outputs).double(), kept)


def _path_of(saved: SavedRun, client: str | None) -> Path:
    """The file of the weights."""
    path = saved.model or saved.folder / "model.pt"
    if client is not None:
        folder = saved.folder / "personal"
        files = [*folder.glob(f"{client}.pt"), *folder.glob(f"{client}-*.pt")]
        if not files:
            raise ConfigError(f"client={client}: there is no {folder / client}.pt")
        path = files[0]
    if not path.is_file():
        raise ConfigError(
            f"run={saved.folder}: there is no {path}; allowed: client=NUMBER, if clients have "
            f"models of their own"
        )
    return path


def _classes(outputs: Tensor, kept: Preprocessing) -> dict[str, np.ndarray]:
    names = np.array(kept.classes or [*map(str, range(kept.num_outputs))])
    scores = outputs.softmax(dim=1).numpy()
    columns = {f"probability_{name}": scores[:, place] for place, name in enumerate(names)}
    return {"predicted": names[scores.argmax(axis=1)], **columns}


def _numbers(outputs: Tensor, kept: Preprocessing) -> dict[str, np.ndarray]:
    values = outputs.numpy()
    columns = {}
    for place, name in enumerate(_target_names(kept)):
        scale = kept.columns and kept.columns.targets.get(name)
        mean, deviation = (scale.mean, scale.deviation) if scale else (0.0, 1.0)
        columns[f"predicted_{name}"] = values[:, place] * deviation + mean
    return columns


def _labels(outputs: Tensor, kept: Preprocessing) -> dict[str, np.ndarray]:
    scores = outputs.sigmoid().numpy()
    names = enumerate(_target_names(kept))
    return {f"probability_{name}": scores[:, place] for place, name in names}


def _risk(outputs: Tensor, _: Preprocessing) -> dict[str, np.ndarray]:
    return {"log_hazard": outputs[:, 0].numpy()}


def _target_names(kept: Preprocessing) -> list[str]:
    """Names of outputs that are no classes."""
    return [*(kept.columns.targets if kept.columns else map(str, range(kept.num_outputs)))]


_COLUMNS: Mapping[str, Callable[[Tensor, Preprocessing], dict[str, np.ndarray]]] = {
    "classification": _classes,
    "regression": _numbers,
    "multilabel": _labels,
    "survival": _risk,
}
"""What is said of each example, by task: outputs float64 [N, C] -> columns [N]."""
