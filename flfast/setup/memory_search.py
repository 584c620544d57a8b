"""Finds the largest number of examples whose local step fits in memory, for `batch_size=auto`.

On CUDA, real steps run until one is out of memory. On the CPU that would kill the process:
instead, the bytes of two small steps are measured and extrapolated linearly.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from lightning.pytorch.utilities.memory import garbage_collection_cuda, is_oom_error

from flfast.setup.memory_probe import MemoryProbe, extrapolate, measure_memory
from flfast.state.machine import free_memory

HEADROOM = 0.1
"""Share of the free memory that is kept for fragmentation, workspaces and communication."""

MEASURED_SIZES = (8, 16)
"""Numbers of examples whose steps are measured on the CPU."""


def largest_fitting(fits: Callable[[int], bool], limit: int) -> int:
    """Largest number in [1, limit] that fits; 0 if 1 does not.

    Doubles the number until it does not fit, then bisects.

    Args:
        fits: monotone predicate: if n fits, every smaller number fits.
        limit: >= 1.

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

    Neither the model's weights nor the state of random generators change.

    Args:
        probe: the local step.
        limit: upper bound of the search, >= 1.
        devices_per_batch: devices that a batch is split over evenly, >= 1.
        budget: bytes to stay within; None is the free memory less `HEADROOM`.
        ranks: processes that share this machine's memory, >= 1.

    Raises:
        ValueError: if the device is neither a CPU nor CUDA.
    """
    device = probe.device
    if device.type not in {"cpu", "cuda"}:
        raise ValueError(f"auto on {device.type}: memory can be measured on cuda and cpu only")
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
