"""Measures the memory of a local step, on the largest client's examples and a model copy."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from flfast.algorithms.contract.client import Context, LocalStage
from flfast.algorithms.contract.downloads import first_downloads
from flfast.datamodules.federated import FederatedDataModule
from flfast.engines.measuring import Measuring
from flfast.engines.site import facts_of
from flfast.lit.batchnorm import batchnorm_layers
from flfast.lit.local_module import LocalModule
from flfast.lit.trainers import ReusedTrainer, dtype_of_precision
from flfast.state.plan import Batching, RoundPlan
from flfast.state.tree import Tree
from flfast.state.weights import convert_weights


@dataclass(frozen=True)
class MemoryProbe:
    """Everything that a local step with a batch of any size needs, on one device.

    The module is copied. `accumulates` is whether steps accumulate gradients over batches.
    """

    module: LocalModule
    initial: Tree
    data: FederatedDataModule
    make_trainer: Callable[[RoundPlan], L.Trainer]
    plan: RoundPlan
    accumulates: bool

    @property
    def device(self) -> torch.device:
        """Device that the steps run on."""
        return self.make_trainer(self.plan).strategy.root_device

    def run(self, num_examples: int, *, num_steps: int) -> LocalModule:
        """Take local steps with batches of `num_examples` and return the module that took them.

        Raises:
            torch.OutOfMemoryError: if a step does not fit.
        """
        module = self._copy()
        if any(True for _ in batchnorm_layers(module.model)):
            num_examples = max(num_examples, 2)  # BatchNorm refuses a batch of one
        num_batches = 2 if self.accumulates else 1
        # `pad` repeats examples: batches have their full size even if the client has too few.
        batching = Batching(
            num_examples, accumulate=num_batches, last_batch="pad", limit=num_batches
        )
        data = self.data.client(int(np.argmax(self.data.client_sizes)), batching=batching)
        plan = self.plan._replace(local_epochs=None, local_steps=num_steps)
        ReusedTrainer(self.make_trainer(plan)).fit(module, data, plan)
        return module

    def _copy(self) -> LocalModule:
        original, algorithm = self.module, self.module.algorithm
        module = original.of(deepcopy(original.model), algorithm)
        convert_weights(module, dtype_of_precision(self.plan.precision))
        server = first_downloads(algorithm, self.initial)(0)
        client = algorithm.client_state(server)
        lr = torch.tensor(self.plan.lr, dtype=torch.float64)
        start = algorithm.start(server, client)
        largest = int(np.argmax(self.data.client_sizes))
        facts = facts_of(algorithm, self.data, largest, 1)
        context = Context(server, client, start, lr, lambda purpose: torch.Generator(), facts)
        module.begin(context, algorithm.optimizer(server, client) if algorithm.optimizer else {})
        for stage in algorithm.stages:
            if isinstance(stage, LocalStage):
                module.begin_stage(stage._replace(trains=None), context)
                return module
            trainer = self.make_trainer(self.plan)
            measuring = Measuring(module.model, module.task_type, trainer, self.data)
            context = measuring(stage, start, largest, context)
        return module


class StepMemory(NamedTuple):
    """Bytes that a local step allocates.

    Attributes:
        fixed: weights, gradients, buffers and optimizer state.
        saved: activations saved for the backward pass, one number per storage.
    """

    fixed: float
    saved: Sequence[float]

    def peak(self) -> float:
        """Estimated peak: all of it, and two gradients of the largest activation.

        The backward pass of a layer holds the gradients of its output and of its input.
        """
        return self.fixed + sum(self.saved) + 2 * max(self.saved, default=0)


def measure_memory(probe: MemoryProbe, num_examples: int) -> StepMemory:
    """Bytes of a local step with a batch of `num_examples`, on the CPU."""
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        module = probe.run(num_examples, num_steps=1)
    parameters = list(module.parameters())
    for parameter in parameters:
        saved.pop(parameter.untyped_storage().data_ptr(), None)
    gradients = [parameter for parameter in parameters if parameter.requires_grad]
    state = [
        value
        for values in module.optimizer.state.values()
        for value in values.values()
        if isinstance(value, Tensor)
    ]
    fixed = [*parameters, *gradients, *module.buffers(), *state]
    return StepMemory(sum(tensor.nbytes for tensor in fixed), list(saved.values()))


def extrapolate(points: Sequence[tuple[int, StepMemory]], num_examples: int) -> StepMemory:
    """Bytes of a larger step: every saved storage grows linearly with the number of examples.

    The points are two ascending numbers of examples, each with the measured bytes.
    """
    (small, small_step), (large, large_step) = points
    factor = (num_examples - large) / (large - small)
    pairs = zip_longest(small_step.saved, large_step.saved, fillvalue=0)
    return StepMemory(large_step.fixed, [high + factor * (high - low) for low, high in pairs])
