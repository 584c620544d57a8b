"""Builds the models of a run before round 1: one, or a family's members, with their adapters."""

from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

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
from flfast.datamodules.population import Kinds
from flfast.federation.devices.device import fastest_first
from flfast.lit.batchnorm import batchnorm_layers
from flfast.lit.channels_last import use_channels_last
from flfast.lit.module_task import local_task
from flfast.lit.task import evaluation_mode
from flfast.lit.trainers import dtype_of_precision
from flfast.lit.user_module import UserModule, is_user_module
from flfast.models.adapters.adapted import Adapted
from flfast.models.adapters.layer_names import layer_of
from flfast.models.family import Family, with_same_features
from flfast.setup.lightning_model import check_forward_alone, check_types, prepared
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
from flfast.state.tree import Tree
from flfast.state.weights import (
    by_name,
    convert_weights,
    load_weights,
    read_state_dict,
    read_weights,
    write_weights,
)


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
    initial = {
        name: _initial_model(config, data, model, member=place, num_members=len(models))
        for place, (name, model) in enumerate(models.items())
    }
    kinds = None
    if family is not None:
        kinds = Kinds(tuple(models), members_of(config, data, family))
    return Models(initial, kinds if len(models) > 1 else None, common)


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


def initial_weights(config: DictConfig, weights: Tree) -> Tree:
    """Weights before round 1: the given ones of the model, or those in the file `init_from`.

    Raises:
        ValueError: if the file holds no weights, or those of another model.
    """
    if config.init_from is None:
        return weights
    found = read_state_dict(config.init_from, key="init_from", names=by_name(weights))
    return load_weights(weights, found, source=f"init_from={config.init_from}")


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
    members = {name: build(name, builder, size) for name, builder in made.builders.items()}
    return members, made, common


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


def build_adapter(
    config: DictConfig,
    model: nn.Module,
    initial: Tree,
    data: FederatedDataModule,
    *,
    member: int = 0,
    num_members: int = 1,
) -> Adapted | None:
    """The model, changed in place, with its adapter; None if all parameters are trained.

    The model is one of `num_members` of a family.

    Raises:
        ConfigError: if the base would have to change, because it has BatchNorm, or if the outputs
            do not depend on a part of the adapter.
        ValueError: if the model has no layer for the adapter.
    """
    write_weights(model, initial)
    name = choice(config.adapter)
    has_batchnorm = any(True for _ in batchnorm_layers(model))
    if name != "none" and has_batchnorm and config.bn != "frozen":
        raise ConfigError(
            f"adapter={name} with bn={config.bn}: the base is frozen, so the statistics of its "
            f"BatchNorm must not change; allowed: bn=frozen"
        )
    seed_torch(config.seed, "adapter")
    with torch.inference_mode(mode=False):
        with named("adapter", config.adapter["_target_"]):
            adapter = instantiate(config.adapter)
            adapted = call_with(adapter, model, member=member, num_members=num_members)
        if adapted is not None:
            _check_used(name, model, data)
    return adapted


def _check_used(name: str, model: nn.Module, data: FederatedDataModule) -> None:
    """Refuse an adapter in a layer whose weights the model reads itself, without calling it."""
    if isinstance(model, UserModule) and not model.automatic_optimization:
        return  # whose step has no loss to look at
    params = dict(model.named_parameters())
    task = local_task(model, data.examples.task_type, model_params=params)
    with torch.enable_grad(), evaluation_mode(model):
        loss = task(params, first_batch(data, model))
        grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
    unused = [key for key, grad in zip(params, grads, strict=True) if grad is None]
    if unused:
        layers = ", ".join(dict.fromkeys(map(layer_of, unused)))
        raise ConfigError(
            f"adapter={name}: the model reads the weights of {layers} without calling the layer, "
            f"so an adapter there has no effect; allowed: other layers"
        )
