"""A family's members: what they must agree on, and the engine that trains each client's own."""

import logging
from collections.abc import Callable

import numpy as np
import torch
from omegaconf import DictConfig
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from flfast.algorithms.contract.downloads import first_downloads
from flfast.engines.engine import Engine
from flfast.engines.family_engine import family_engine
from flfast.lit.task import evaluation_mode
from flfast.setup.components import Components
from flfast.setup.model_check import first_batch, try_training
from flfast.state.tree import num_bytes

log = logging.getLogger(__name__)


def try_models(config: DictConfig, components: Components) -> None:
    """Compute a gradient with each model; see `try_training`."""
    for name, one in _named(config, components).items():
        try_training(name, one.module.model, one.data, bn=config.bn)


def _named(config: DictConfig, components: Components) -> dict[str, Components]:
    """The components of each model, by name of the member or target of the model."""
    if components.members is None:
        return {config.model["_target_"]: components}
    (names, _), others = components.members
    return dict(zip(names, (components, *others), strict=True))


def with_members(
    engine: Engine, components: Components, build: Callable[[str, Components], Engine]
) -> Engine:
    """An engine whose clients have models of their own; the same one without a family.

    Args:
        engine: of the first member.
        components: of the run.
        build: (name, components) -> the engine of another member.
    """
    if components.members is None:
        return engine
    (names, of), others = components.members
    engines = [engine, *(build(name, one) for name, one in zip(names[1:], others, strict=True))]
    every = (components, *others)
    flops = np.array([_flops(one.module.model, one) for one in every], dtype=np.float64)
    about: dict[str, float] = {}
    for place, (name, one) in enumerate(zip(names, every, strict=True)):
        num, cost = int((of == place).sum()), float(flops[place])
        size = sum(p.numel() for p in one.module.model.parameters())
        log.info("%s: %d clients, %s parameters, %.3g MFLOP", name, num, f"{size:,}", cost / 1e6)
        about |= {f"model/clients_{name}": num, f"model/parameters_{name}": size}
        algorithm = one.module.algorithm
        state = algorithm.client_state(first_downloads(algorithm, one.initial)(0))
        kept = num_bytes(one.initial) + num_bytes(state)
        about |= {f"model/flop_{name}": cost, f"model/kept_bytes_{name}": kept}
    local = [one.initial for one in every]
    joined = family_engine(engines, of, local, flops)
    joined.about = about
    return joined


def _flops(model: nn.Module, components: Components) -> int:
    """Floating-point operations of a forward pass of an example; the same on every rank."""
    inputs = first_batch(components.data, model).inputs
    with torch.no_grad(), evaluation_mode(model), FlopCounterMode(display=False) as counter:
        model(inputs)
    # The counter does not know recurrent layers: there, each token meets each parameter once.
    tokens = 1 if inputs.is_floating_point() else inputs[0].numel()
    least = 2 * tokens * sum(p.numel() for p in model.parameters())
    return max(counter.get_total_flops() // len(inputs), least if tokens > 1 else 1)
