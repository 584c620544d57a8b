"""Finds the largest number of examples whose local step fits in memory, for `batch_size=auto`.

On CUDA, real steps run until one is out of memory. On the CPU that would kill the process:
instead, the bytes of two small steps are measured and extrapolated linearly.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.memory import garbage_collection_cuda, is_oom_error
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from flfast.algorithms.contract.client import Context, LocalStage
from flfast.algorithms.contract.downloads import first_downloads, tried_before_round_1
from flfast.config.errors import ConfigError
from flfast.datamodules.federated import FederatedDataModule
from flfast.engines.measuring import Measuring
from flfast.engines.site import facts_of
from flfast.lit.batchnorm import batchnorm_layers
from flfast.lit.local_module import LocalModule
from flfast.lit.trainers import ReusedTrainer, dtype_of_precision
from flfast.models.recomputed import recomputes
from flfast.state.machine import free_memory
from flfast.state.plan import Batching, RoundPlan
from flfast.state.tree import Tree
from flfast.state.weights import convert_weights

HEADROOM = 0.1
"""Share of the free memory that is kept for fragmentation, workspaces and communication."""

MEASURED_SIZES = (8, 16)
"""Numbers of examples whose steps are measured on the CPU."""


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
        with tried_before_round_1(module.context.server):
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
        facts = facts_of(algorithm, self.data, largest, self.plan)
        context = Context(server, client, start, lr, lambda purpose: torch.Generator(), facts)
        begin = algorithm.kit.optimizer
        module.begin(context, begin(server, client) if begin else {})
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
    if not hasattr(module, "optimizer"):
        raise ConfigError("batch_size=auto: the module has several optimizers; allowed: a number")
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


def largest_fitting(fits: Callable[[int], bool], limit: int) -> int:
    """Largest number in [1, limit] that fits; 0 if 1 does not. The limit is >= 1.

    Doubles the number until it does not fit, then bisects: if n fits, every smaller number does.

    >>> largest_fitting(lambda n: n <= 37, 100)
    37
    """
    low, high = 0, 1
    while fits(high):
        if high == limit:
            return limit
        low, high = high, min(2 * high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def num_fitting(
    probe: MemoryProbe, limit: int, *, devices_per_batch: int, budget: int | None, ranks: int
) -> int:
    """Examples of the largest batch that fits on this rank's device, in [0, limit].

    Neither the model's weights nor the state of random generators change. The limit is >= 1. A
    batch is split evenly over `devices_per_batch` >= 1 devices. `budget` is bytes to stay within;
    None is the free memory less `HEADROOM`, which `ranks` >= 1 processes of this machine share.

    Raises:
        ValueError: if the device is neither a CPU nor CUDA, or a CPU and the model recomputes.
    """
    device = probe.device
    if device.type not in {"cpu", "cuda"}:
        raise ValueError(f"auto on {device.type}: memory can be measured on cuda and cpu only")
    if device.type == "cpu" and recomputes(probe.module.model):
        raise ValueError(
            "auto on cpu with recompute: what is not kept is not measured; set a number"
        )
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        if device.type == "cpu":
            share = int(free_memory() * (1 - HEADROOM)) // ranks
            fits = _fits_on_cpu(probe, share if budget is None else budget, limit)
            return largest_fitting(lambda num: fits(-(-num // devices_per_batch)), limit)
        with _cuda_limit(device, budget):
            return largest_fitting(
                lambda num: _fits_on_cuda(probe, -(-num // devices_per_batch)), limit
            )


def _fits_on_cuda(probe: MemoryProbe, num_examples: int) -> bool:
    try:
        probe.run(num_examples, num_steps=2)  # the first step allocates the optimizer's state
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not is_oom_error(error):
            raise
        return False
    finally:
        garbage_collection_cuda()
    return True


@contextmanager
def _cuda_limit(device: torch.device, budget: int | None) -> Iterator[None]:
    """Let the allocator refuse requests beyond the budget."""
    garbage_collection_cuda()
    free, total = torch.cuda.mem_get_info(device)
    allowed = int(free * (1 - HEADROOM)) if budget is None else budget
    share = min(1.0, (torch.cuda.memory_reserved(device) + allowed) / total)
    torch.cuda.set_per_process_memory_fraction(share, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def _fits_on_cpu(probe: MemoryProbe, budget: int, limit: int) -> Callable[[int], bool]:
    measured = cache(lambda num: measure_memory(probe, num))

    def fits(num_examples: int) -> bool:
        if limit <= MEASURED_SIZES[-1] or num_examples <= MEASURED_SIZES[-1]:
            return measured(num_examples).peak() <= budget
        points = [(num, measured(num)) for num in MEASURED_SIZES]
        return extrapolate(points, num_examples).peak() <= budget

    return fits
