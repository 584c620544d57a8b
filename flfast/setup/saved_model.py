"""Builds what predicts raw examples: the data of a saved run's source, and its model."""

from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import nn

from flfast.config.saved_run import SavedRun
from flfast.datamodules.preprocessing import Preprocessing
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


def read_raw(config: DictConfig, kept: Preprocessing, key: str | None) -> RawInputs:
    """Examples without targets, read by the config's source as in training.

    Raises:
        ValueError: if it cannot read such examples, or they are not like those of training.
    """
    target = config.data["_target_"]
    with named("data", target):
        made = call_with(instantiate(config.data), seed=config.seed, task=kept.task, kept=kept)
        return (made if isinstance(made, DataSource) else DataSource()).raw_inputs(key)


def model_of_file(saved: SavedRun, data: RawData, path: Path) -> nn.Module:
    """The run's model with the weights of a file, in evaluation mode.

    Raises:
        ValueError: if the file is damaged, or holds weights of another model.
    """
    model = build_model(saved.config, data, saved.objects)
    dtype = dtype_of_precision(saved.config.trainer.precision)
    convert_weights(model, torch.promote_types(dtype, torch.float32))
    found = read_state_dict(str(path), key="run")
    write_weights(model, load_weights(read_weights(model), found, source=str(path)))
    return model.eval()
