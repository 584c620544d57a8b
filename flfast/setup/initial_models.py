"""The models of a run before round 1, with their weights and adapters."""

from typing import NamedTuple

import torch
from omegaconf import DictConfig
from torch import nn

from flfast.config.errors import ConfigError
from flfast.config.own import Own
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.population import Kinds
from flfast.lit.channels_last import use_channels_last
from flfast.lit.trainers import dtype_of_precision
from flfast.lit.user_module import UserModule
from flfast.models.adapters.adapted import Adapted
from flfast.setup.adapters import build_adapter
from flfast.setup.build import initial_weights
from flfast.setup.build_models import build_models, members_of
from flfast.setup.lightning_model import check_types
from flfast.state.tree import Tree
from flfast.state.weights import convert_weights, read_weights


class InitialModel(NamedTuple):
    """A model before round 1.

    Attributes:
        model: with its adapter.
        weights: that are trained; with an adapter, the adapter's.
        adapted: the model with its adapter, if it has one.
        misfit: why `init_from` has no weights for it.
    """

    model: nn.Module
    weights: Tree
    adapted: Adapted | None
    misfit: ValueError | None


class Models(NamedTuple):
    """The models of a run.

    Attributes:
        by_name: name of the member, or of the model's function -> model.
        kinds: which client has which; None: all have the only one.
        common: what all clients of a family have beside their own, if there is one.
    """

    by_name: dict[str, InitialModel]
    kinds: Kinds | None
    common: nn.Module | None


def initial_models(config: DictConfig, data: FederatedDataModule, objects: Own) -> Models:
    """The models of a run, initialised from the seed or from `init_from`, with their adapters.

    Raises:
        ConfigError: if a model does not fit the examples, or its weights do not fit it.
    """
    models, family, common = build_models(config, data, objects)
    if len(models) > 1 and any(isinstance(model, UserModule) for model in models.values()):
        what = "members are LightningModules, which evaluate clients by steps of their own"
        raise ConfigError(f"model.of: {what}; allowed: one such model, or members of nn.Module")
    by_name = {
        name: _initial_model(config, data, model, member=place, num_members=len(models))
        for place, (name, model) in enumerate(models.items())
    }
    kinds = None
    if family is not None:
        kinds = Kinds(tuple(models), members_of(config, data, family))
    return Models(by_name, kinds if len(models) > 1 else None, common)


def _initial_model(
    config: DictConfig, data: FederatedDataModule, model: nn.Module, **place: int
) -> InitialModel:
    use_channels_last(model)
    # The data type of means of uploads: what is made of the initial weights keeps theirs.
    dtype = dtype_of_precision(config.trainer.precision)
    if isinstance(model, UserModule):
        check_types(f"model={config.model['_target_']}", model, config.trainer.precision)
    convert_weights(model, torch.promote_types(dtype, torch.float32))
    initial, misfit = read_weights(model), None
    try:
        initial = initial_weights(config, initial)
    except ValueError as error:
        if place["member"] == 0:
            raise
        misfit = error  # no matter, if it is a part of the first member
    adapted = build_adapter(config, model, initial, data, **place)
    weights = initial if adapted is None else read_weights(model)
    return InitialModel(model, weights, adapted, misfit)
