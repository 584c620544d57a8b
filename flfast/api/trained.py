"""Rebuilds a run's model from its folder."""

from copy import deepcopy
from pathlib import Path

import torch
from omegaconf import DictConfig
from torch import nn

from flfast.config.errors import ConfigError, refused
from flfast.config.own import Own
from flfast.config.saved_config import check_saved
from flfast.lit.user_module import UserModule, is_user_module, released
from flfast.setup.build_data import build_data
from flfast.setup.build_models import build_model
from flfast.setup.lightning_model import prepared
from flfast.state.weights import load_weights, read_state_dict, read_weights, write_weights


def trained_model(folder: Path, config: DictConfig, objects: Own) -> nn.Module:
    """The model with the weights of `model.pt`, in evaluation mode.

    Raises:
        ConfigError: if there is no `model.pt`, it does not fit the model, or an object of the run
            is missing.
    """
    path = folder / "model.pt"
    if not path.exists():
        raise ConfigError(
            f"there is no {path}: the server has no complete model, but perhaps a shared.pt, or "
            f"callbacks=none wrote no file"
        )
    model = _untrained(folder, config, objects)
    with refused():
        found = read_state_dict(str(path), key="run")  # weights that modules share are in it once
        write_weights(model, load_weights(read_weights(model), found, source=str(path)))
    return (released(model) if isinstance(model, UserModule) else model).eval()


def _untrained(folder: Path, config: DictConfig, objects: Own) -> nn.Module:
    """The model with any weights; a module needs no data, which would tell a function its size."""
    if isinstance(objects.model, nn.Module):
        model = deepcopy(objects.model)
        return prepared("model=MODULE", model) if is_user_module(model) else model
    objects.require(config, folder)
    check_saved(config, folder)
    with torch.random.fork_rng(devices=[]):
        data = build_data(config, objects)
        try:
            return build_model(config, data, objects)
        finally:
            data.close()
