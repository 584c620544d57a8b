"""Predicts raw examples with a model of a saved run: classes by name, numbers in their unit."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor, nn

from flfast.config.errors import ConfigError, refused
from flfast.config.saved_run import SavedRun
from flfast.datamodules.fetching import Loading
from flfast.datamodules.preprocessing import FILE, Preprocessing, read_preprocessing
from flfast.datamodules.raw_data import RawData
from flfast.datamodules.sources.source import DataSource, RawInputs
from flfast.lit.trainers import dtype_of_precision
from flfast.setup.build_models import build_model
from flfast.setup.user_code import named
from flfast.state.injection import call_with
from flfast.state.weights import (
    convert_weights,
    load_weights,
    read_state_dict,
    read_weights,
    write_weights,
)


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
    with refused():
        kept = read_preprocessing(saved.folder)
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
        given = raw or _read_raw(saved.config, kept, key)
        data = RawData(given, kept, Loading(**saved.config.loader))
        model = _model_of_file(saved, data, _path_of(saved, client))
        dtype = next(model.parameters()).dtype
        batches = data.eval_loader(data.train_clients.indices)
        outputs = [model(data.examples.transform(batch.inputs, dtype=dtype)) for batch in batches]
    return given.about | _COLUMNS[kept.task](torch.cat(outputs).double(), kept)


def _read_raw(config: DictConfig, kept: Preprocessing, key: str | None) -> RawInputs:
    """Examples without targets, read by the config's source as in training.

    Raises:
        ValueError: if it cannot read such examples, or they are not like those of training.
    """
    target = config.data["_target_"]
    with named("data", target):
        made = call_with(instantiate(config.data), seed=config.seed, task=kept.task, kept=kept)
        return (made if isinstance(made, DataSource) else DataSource()).raw_inputs(key)


def _model_of_file(saved: SavedRun, data: RawData, path: Path) -> nn.Module:
    """The run's model with the weights of a file, in evaluation mode.

    Raises:
        ValueError: if the file is damaged, or holds weights of another model.
    """
    model = build_model(saved.config, data, saved.objects)
    dtype = dtype_of_precision(saved.config.trainer.precision)
    convert_weights(model, torch.promote_types(dtype, torch.float32))
    state_dict = read_state_dict(str(path), key="run")
    write_weights(model, load_weights(read_weights(model), state_dict, source=str(path)))
    return model.eval()


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
