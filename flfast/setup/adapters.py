"""Puts the configured adapter into the model."""

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import nn

from flfast.config.errors import ConfigError
from flfast.datamodules.federated import FederatedDataModule
from flfast.lit.batchnorm import batchnorm_layers
from flfast.lit.module_task import local_task
from flfast.lit.task import evaluation_mode
from flfast.lit.user_module import UserModule
from flfast.models.adapters.adapted import Adapted
from flfast.models.adapters.layer_names import layer_of
from flfast.setup.model_check import first_batch
from flfast.setup.user_code import named
from flfast.state.injection import call_with
from flfast.state.randomness import seed_torch
from flfast.state.tree import Tree
from flfast.state.weights import write_weights


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
    name = str(config.adapter["_target_"]).rpartition(".")[2]
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
