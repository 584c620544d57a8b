"""How fast this machine is, and how much work an example is."""

import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

_BATCH = 10  # of the count, which is divided by it


def flops_per_example(model: nn.Module, shape: tuple[int, ...]) -> tuple[float, float]:
    """FLOPs of (forward and backward, forward alone) of one example on the CPU."""
    inputs, targets = torch.randn(_BATCH, *shape), torch.zeros(_BATCH, dtype=torch.int64)
    with FlopCounterMode(display=False) as training:
        F.cross_entropy(model(inputs), targets).backward()
    with FlopCounterMode(display=False) as evaluation, torch.no_grad():
        model(inputs)
    return training.get_total_flops() / _BATCH, evaluation.get_total_flops() / _BATCH


def seconds(work: Callable[[], object], device: str, *, calls: int) -> float:
    """Least seconds of a call, as the mean of `calls` in a row, in half a second of trying."""
    best, end = float("inf"), time.perf_counter() + 0.5
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best / calls


def peak_flops(device: str) -> float:
    """FLOP/s of the best square float32 matrix product, with one thread."""
    best = 0.0
    for size in (512, 1024, 2048) if device == "cpu" else (4096, 8192):
        a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
        out = torch.empty_like(a)
        best = max(best, 2 * size**3 / seconds(lambda: torch.mm(a, b, out=out), device, calls=1))  # noqa: B023
    return best
