"""A local step to try out: on the largest client's examples, with a copy of the model."""

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

from flfast.algorithms.algorithm import Context
from flfast.datamodules.federated import FederatedDataModule
from flfast.lit.batchnorm import batchnorm_layers
from flfast.lit.local_module import LocalModule
from flfast.lit.reused_trainer import ReusedTrainer
from flfast.lit.trainers import TRUE_PRECISION
from flfast.plan import Batching, RoundPlan
from flfast.state.tree import Tree


@dataclass(frozen=True)
class Trial:
    """What a local step of any size is made of.

    Attributes:
        module: model, algorithm and optimizer; copied, never changed.
        initial: weights before round 1.
        data: the population.
        make_trainer: plan -> a new Trainer on this rank's device.
        plan: of the phase, for one device.
        accumulates: whether gradients are held while another batch is computed.
    """

    module: LocalModule
    initial: Tree
    data: FederatedDataModule
    make_trainer: Callable[[RoundPlan], L.Trainer]
    plan: RoundPlan
    accumulates: bool

    @property
    def device(self) -> torch.device:
        """Where the steps run."""
        return self.make_trainer(self.plan).strategy.root_device

    def run(self, num_examples: int, *, num_steps: int) -> LocalModule:
        """Take local steps with batches of `num_examples`; returns the module that took them.

        Raises:
            torch.OutOfMemoryError: if they do not fit.
        """
        module = self._copy()
        if any(True for _ in batchnorm_layers(module.model)):
            num_examples = max(num_examples, 2)  # one example has no variance
        num_batches = 2 if self.accumulates else 1
        # `pad` repeats examples, so that every batch has its full size whatever the client has.
        batching = Batching(
            num_examples, accumulate=num_batches, last_batch="pad", limit=num_batches
        )
        data = self.data.client(int(np.argmax(self.data.train_clients.sizes())), batching=batching)
        plan = self.plan._replace(local_epochs=None, local_steps=num_steps)
        ReusedTrainer(self.make_trainer(plan)).fit(module, data, plan)
        return module

    def _copy(self) -> LocalModule:
        own, algorithm = self.module, self.module.algorithm
        module = LocalModule(
            deepcopy(own.model),
            algorithm,
            own.make_optimizer,
            freeze_batchnorm=own.freeze_batchnorm,
        )
        module.to(TRUE_PRECISION.get(self.plan.precision, torch.float32))
        server = algorithm.broadcast(algorithm.server_state(self.initial))
        client = algorithm.client_state(server)
        lr = torch.tensor(self.plan.lr, dtype=torch.float64)
        start = algorithm.start(server, client)
        context = Context(server, client, start, lr, lambda purpose: torch.Generator())
        module.begin(context, algorithm.optimizer(server, client) if algorithm.optimizer else {})
        return module


class Held(NamedTuple):
    """Bytes that a local step holds.

    Attributes:
        fixed: weights, gradients and optimizer state.
        saved: what the forward pass saves for the backward pass, storage by storage.
    """

    fixed: float
    saved: Sequence[float]

    def peak(self) -> float:
        """All of it, and the two gradients in hand in the backward pass of the largest layer."""
        return self.fixed + sum(self.saved) + 2 * max(self.saved, default=0)


def measure(trial: Trial, num_examples: int) -> Held:
    """What a step with a batch of `num_examples` holds, on the CPU."""
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        module = trial.run(num_examples, num_steps=1)
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
    held = [*parameters, *gradients, *module.buffers(), *state]
    return Held(sum(tensor.nbytes for tensor in held), list(saved.values()))


def extrapolate(points: Sequence[tuple[int, Held]], num_examples: int) -> Held:
    """What a larger step will hold: every storage is linear in the number of examples.

    Args:
        points: two numbers of examples, ascending, and what steps of them held.
        num_examples: to continue to.
    """
    (small, before), (large, after) = points
    far = (num_examples - large) / (large - small)
    pairs = zip_longest(before.saved, after.saved, fillvalue=0)
    return Held(after.fixed, [high + far * (high - low) for low, high in pairs])
