"""FLOPs of a model, and the peak FLOP/s of this machine."""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

_BATCH = 10


def flops_per_example(model: nn.Module, shape: tuple[int, ...]) -> tuple[float, float]:
    """FLOPs per example of (training, evaluation): forward and backward, forward only."""
    inputs, targets = torch.randn(_BATCH, *shape), torch.zeros(_BATCH, dtype=torch.int64)
    with FlopCounterMode(display=False) as training:
        F.cross_entropy(model(inputs), targets).backward()
    with FlopCounterMode(display=False) as evaluation, torch.no_grad():
        model(inputs)
    return training.get_total_flops() / _BATCH, evaluation.get_total_flops() / _BATCH


def best_seconds(work: Callable[[], object], device: str, *, calls: int) -> float:
    """Shortest mean duration of `calls` consecutive calls, within half a second of repetitions."""
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
    """FLOP/s of the fastest float32 matrix product or convolution, with torch's current threads.

    On some processors convolutions are a fourth faster: their library is another one.
    """
    images = torch.randn(32, 64, 28, 28, device=device)
    kernel = torch.randn(64, 64, 5, 5, device=device)
    images, kernel = (x.to(memory_format=torch.channels_last) for x in (images, kernel))
    with torch.no_grad():
        duration = best_seconds(partial(F.conv2d, images, kernel), device, calls=1)
    best = 2 * 32 * 64 * 24 * 24 * kernel[0].numel() / duration
    for size in (512, 1024, 2048) if device == "cpu" else (4096, 8192):
        a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
        out = torch.empty_like(a)
        duration = best_seconds(partial(torch.mm, a, b, out=out), device, calls=1)
        best = max(best, 2 * size**3 / duration)
    return best
