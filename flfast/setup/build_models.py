"""Builds the models of a run from its config: one, or the members of a family."""

from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from flfast.config.errors import ConfigError
from flfast.config.own import Own
from flfast.config.values import choice
from flfast.datamodules.federated import FederatedDataModule
from flfast.federation.devices.device import fastest_first
from flfast.lit.user_module import is_user_module
from flfast.models.family import Family, with_same_features
from flfast.setup.lightning_model import check_forward_alone, prepared
from flfast.setup.model_check import (
    check_initialized,
    check_module,
    check_outputs,
    first_batch,
    model_offers,
)
from flfast.setup.trial_calls import first_outputs
from flfast.setup.user_code import named, of_kind
from flfast.state.injection import asks_for, bound, call_with, forwards_any
from flfast.state.randomness import seed_torch


def build_models(
    config: DictConfig, data: FederatedDataModule, objects: Own
) -> tuple[dict[str, nn.Module], Family | None, nn.Module | None]:
    """Models by name, the family that they are members of, and `model.common`, if there are any.

    All are initialised from the seed.

    A function is called with what the data tell (`model_offers`). A module that a program has made
    itself is copied, with its weights.

    Raises:
        ConfigError: if a model does not turn two of the examples into the task's outputs, such
            as logits [2, C], or has no parameters.
    """
    target = config.model["_target_"]
    seed_torch(config.seed, "initial weights", others=True)  # of modules that Hydra makes
    with named("model", target):
        given = objects.model
        made = instantiate(config.model, _convert_="all") if given is None else deepcopy(given)
    if not isinstance(made, Family):
        return {target: _build_model(config, data, target, made)}, None, None
    build, size, common = partial(_build_model, config, data), made.feature_dim, None
    if made.common is not None:
        common = build("model.common", made.common, size)
        if any(isinstance(layer, _BatchNorm | _DropoutNd) for layer in common.modules()):
            raise ConfigError(
                "model.common: has BatchNorm or dropout; allowed: a model that does the same in "
                "training and in evaluation"
            )
    by_name = {name: build(name, builder, size) for name, builder in made.builders.items()}
    return by_name, made, common


def build_model(
    config: DictConfig, data: FederatedDataModule, objects: Own, client_id: int | None = None
) -> nn.Module:
    """The model of a client, or of the server; see `build_models`."""
    models, family, _ = build_models(config, data, objects)
    place = 0
    if family is not None and client_id is not None:
        place = int(members_of(config, data, family)[client_id])
    return list(models.values())[place]


def members_of(config: DictConfig, data: FederatedDataModule, family: Family) -> np.ndarray:
    """Place of each client's model; a function of config and data, as devices are.

    Raises:
        ConfigError: if members have to follow devices that are equally fast.
    """

    def by_device() -> np.ndarray:
        model = bound(instantiate(config.devices), seed=config.seed)
        devices = model(np.arange(data.num_clients))
        if all(np.ptp(seconds) == 0 for seconds in (devices.per_example, devices.fixed)):
            raise ConfigError(
                f"model.assign=by_device devices={choice(config.devices)}: all devices are "
                f"equally fast; allowed: devices whose speeds differ"
            )
        return fastest_first(devices)

    return family.members(data.num_clients, config.seed, by_device)


def _build_model(
    config: DictConfig,
    data: FederatedDataModule,
    target: str,
    builder: Any,
    feature_dim: int | None = None,
) -> nn.Module:
    seed_torch(config.seed, "initial weights", others=True)
    where = f"model={target}"
    with named("model", target):
        made = builder
        if not isinstance(made, nn.Module):
            made = call_with(made, **model_offers(made, data.examples))
    made = of_kind(made, nn.Module, where, allowed="a torch.nn.Module")
    if is_user_module(made):
        if data.examples.task != "module":
            raise ConfigError(
                f"{where}: makes a LightningModule with a training_step, but task="
                f"{data.examples.task}; allowed: task=module optimizer=module"
            )
        return prepared(where, made)
    check_forward_alone(where, made)
    if feature_dim is not None:
        made = with_same_features(made, feature_dim)
    check_module(where, made)
    batch = first_batch(data, made)
    reads = f"inputs of shape {list(data.examples.input_shape)}: model"
    with named(reads, target), torch.no_grad():
        outputs = first_outputs(made.eval(), batch.inputs)
    check_initialized(where, made)
    hint = _how_to_set(builder, data.num_classes)
    check_outputs(where, made, outputs, data, batch, hint=hint)
    if not any(p.requires_grad for p in made.parameters()):
        raise ConfigError(f"{where}: has no parameters to train")
    return made.train()


def _how_to_set(builder: Any, num_classes: int) -> str:
    """Hint for builders that hide the number of classes in their `**kwargs`, else empty."""
    if isinstance(builder, nn.Module) or asks_for(builder, "num_classes"):
        return ""
    if not forwards_any(builder):
        return ""
    return (
        f"; its **kwargs get nothing by themselves: set +model.num_classes={num_classes}, or in "
        f"Python model=partial(BUILDER, num_classes={num_classes})"
    )
