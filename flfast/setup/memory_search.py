"""The largest number of examples whose local step fits in memory: `batch_size=auto`.

On CUDA by real steps until one runs out of memory. On the CPU nothing says so before the system
ends the process: there the bytes of two small steps are measured and continued linearly.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import psutil
import torch
from lightning.pytorch.utilities.memory import garbage_collection_cuda, is_oom_error

from flfast.setup.memory_trial import Trial, extrapolate, measure

HEADROOM = 0.1  # for fragments, workspaces and what other ranks' communication will need
MEASURED = (8, 16)


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """Largest number in [1, limit] that fits; 0 if 1 does not.

    Doubled until it does not fit, then found by bisection.

    Args:
        fits: whether a number fits; less than what fits must fit, too.
        limit: >= 1.

    >>> largest(lambda n: n <= 37, 100)
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


def num_fitting(trial: Trial, limit: int, *, parts: int, budget: int | None, ranks: int) -> int:
    """Examples of the largest batch that fits on this rank's device, in [0, limit].

    Weights, random numbers and results stay as they are.

    Args:
        trial: the local step.
        limit: more are not asked for, >= 1.
        parts: devices that share a batch evenly, >= 1.
        budget: bytes to stay within; None is what is free, less a headroom.
        ranks: processes that share this machine's memory, >= 1.

    Raises:
        ValueError: if the device is of a kind that cannot be measured.
    """
    device = trial.device
    if device.type not in {"cpu", "cuda"}:
        raise ValueError(f"auto on {device.type}: memory can be measured on cuda and cpu only")
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        if device.type == "cpu":
            fits = _fits_by_measure(trial, _free_ram(ranks) if budget is None else budget, limit)
            return largest(lambda num: fits(-(-num // parts)), limit)
        with _cuda_limit(device, budget):
            return largest(lambda num: _fits_by_trial(trial, -(-num // parts)), limit)


def _fits_by_trial(trial: Trial, num_examples: int) -> bool:
    try:
        trial.run(num_examples, num_steps=2)  # the second one meets the optimizer's state
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not is_oom_error(error):
            raise
        return False
    finally:
        garbage_collection_cuda()
    return True


@contextmanager
def _cuda_limit(device: torch.device, budget: int | None) -> Iterator[None]:
    """Have the allocator refuse what goes beyond the budget."""
    garbage_collection_cuda()
    free, total = torch.cuda.mem_get_info(device)
    allowed = int(free * (1 - HEADROOM)) if budget is None else budget
    share = min(1.0, (torch.cuda.memory_reserved(device) + allowed) / total)
    torch.cuda.set_per_process_memory_fraction(share, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def _free_ram(ranks: int) -> int:
    return int(psutil.virtual_memory().available * (1 - HEADROOM)) // ranks


def _fits_by_measure(trial: Trial, budget: int, limit: int) -> Callable[[int], bool]:
    held = cache(lambda num: measure(trial, num))

    def fits(num_examples: int) -> bool:
        if limit <= MEASURED[-1] or num_examples <= MEASURED[-1]:
            return held(num_examples).peak() <= budget
        points = [(num, held(num)) for num in MEASURED]
        return extrapolate(points, num_examples).peak() <= budget

    return fits
