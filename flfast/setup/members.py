"""A family's members: what they must agree on, and the engine that trains each client's own."""

import logging
from collections.abc import Callable

import numpy as np
import torch
from omegaconf import DictConfig
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from flfast.algorithms.contract.downloads import first_downloads
from flfast.algorithms.kit.slices import padded
from flfast.engines.engine import Engine
from flfast.engines.family_engine import family_engine
from flfast.lit.task import evaluation_mode
from flfast.lit.user_module import UserModule
from flfast.setup.learner import Learner
from flfast.setup.model_check import first_batch, try_training
from flfast.setup.trial_calls import trial_copy
from flfast.state.tree import num_bytes
from flfast.state.weights import by_name, called_with, model_weights

log = logging.getLogger(__name__)
_CLOSE = 1e-3
"""Difference of outputs, relative to the largest one, that rounding explains."""


def try_models(config: DictConfig, learner: Learner) -> None:
    """Compute a gradient with each model, and note what is said of it; see `try_training`."""
    for name, one in _named(config, learner).items():
        module = one.module
        if isinstance(module.model, UserModule):  # which was tried when it was made
            continue
        module.refuse_programs(try_training(name, module.model, one.data, bn=config.bn))
        _try_slice(name, one, learner)


def _try_slice(name: str, member: Learner, whole: Learner) -> None:
    """Warn if a member with fewer units does not compute what the whole model does without them.

    That is so if units of several kinds are packed in one weight, as in LSTMs and attention.
    """
    algorithm = member.module.algorithm
    if not algorithm.slices or member is whole or member.adapted is not None:
        return
    weights = model_weights(algorithm.broadcast(algorithm.server_state(whole.initial)))
    if weights["params"].keys() != whole.initial["params"].keys():
        return  # it lacks layers
    inputs, outputs = first_batch(member.data, member.module.model).inputs, []
    with torch.no_grad():
        for model, leaves in (
            (member.module.model, weights),
            (whole.module.model, padded(weights, whole.initial)),
        ):
            with evaluation_mode(model):
                outputs.append(called_with(trial_copy(model), by_name(leaves), inputs))
    far = float((outputs[0] - outputs[1]).abs().max())
    if far > _CLOSE * float(outputs[1].abs().max()):
        log.warning(
            "model.of: %s is not the first member without some of its units: outputs differ by "
            "%.2g. Layers with packed weights, such as LSTMs and attention, and those that "
            "normalise over units cannot be cut into slices",
            *(name, far),
        )


def _named(config: DictConfig, learner: Learner) -> dict[str, Learner]:
    """The learner of each model, by name of the member or target of the model."""
    if learner.members is None:
        return {config.model["_target_"]: learner}
    (names, _), others = learner.members
    return dict(zip(names, (learner, *others), strict=True))


def with_members(
    engine: Engine, learner: Learner, build: Callable[[str, Learner], Engine]
) -> Engine:
    """An engine whose clients have models of their own; the same one without a family.

    `engine` is of the first member. `build` makes that of another one.
    """
    if learner.members is None:
        return engine
    (names, of), others = learner.members
    engines = [engine, *(build(name, one) for name, one in zip(names[1:], others, strict=True))]
    every = (learner, *others)
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
    return family_engine(engines, of, local, flops, about)


def _flops(model: nn.Module, learner: Learner) -> int:
    """Floating-point operations of a forward pass of an example; the same on every rank."""
    inputs, model = first_batch(learner.data, model).inputs, trial_copy(model)
    with torch.no_grad(), evaluation_mode(model), FlopCounterMode(display=False) as counter:
        model(inputs)
    # The counter does not know recurrent layers: there, each token meets each parameter once.
    tokens = 1 if inputs.is_floating_point() else inputs[0].numel()
    least = 2 * tokens * sum(p.numel() for p in model.parameters())
    return max(counter.get_total_flops() // len(inputs), least if tokens > 1 else 1)
