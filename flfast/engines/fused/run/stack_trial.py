"""A trial of how stacks of clients train on a GPU: how many together, and how they convolve.

`stack_choice.py` asks `fastest` before the first round of a plan, with real local steps. On
the CPU there is no trial: `stack_schedule.auto_width` knows what is fast there.
"""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from flfast.engines.fused.graph.cuda_graphs import WARM_UPS

log = logging.getLogger(__name__)

STEPS = 2
"""Local steps of a timed run."""

COLD = WARM_UPS + 2
"""Runs that are not timed: after the last one, the steps are recorded and were replayed once."""

TIMED = 3
"""Runs that are timed; the fastest one counts."""

BUDGET_S = 1.0
"""Time for the widest stack of a trial. With large models, fewer clients are tried together."""

WIDEST = 32
"""Most clients that a trial tries together. More use a GPU's memory without a chance of news."""

GAIN = 0.8
"""Another form must take this share of the usual one's time, at most: noise decides nothing."""


class StackForm(NamedTuple):
    """How clients train together.

    Attributes:
        width: largest number of clients; 0 for as many as memory allows.
        unfold: whether convolutions are batched products of unfolded images, not groups.
    """

    width: int = 0
    unfold: bool = False

    def __str__(self) -> str:
        together = f"{self.width} clients" if self.width else "all clients that fit"
        return together + ", convolutions as products" * self.unfold


def fastest(
    seconds: Callable[[StackForm], float], *, most: int, convolves: bool, fixed: bool
) -> StackForm:
    """The fastest form of stacks. The usual one has many clients, and convolutions with groups.

    Args:
        seconds: of a client's step, with so many clients together; infinite if it fails.
        most: number of clients that fit into memory, or that the user wants.
        convolves: whether steps have convolutions.
        fixed: whether the number of clients must stay `most`.
    """
    if most < 2:
        return StackForm()
    alone = StackForm(1)
    times = {alone: seconds(alone)}
    wide = min(most, WIDEST, max(int(BUDGET_S / (times[alone] * STEPS * (COLD + TIMED))), 2))

    def faster(form: StackForm, usual: StackForm) -> StackForm:
        if form not in times:
            times[form] = seconds(form)
        return form if times[form] < GAIN * times[usual] else usual

    best = StackForm(wide)
    times[best] = seconds(best)
    if convolves:
        best = faster(best._replace(unfold=True), best)
    unfold = best.unfold
    if not fixed:
        if wide >= 8:
            best = faster(best._replace(width=wide // 4), best)
        best = faster(alone, best)
    chosen = StackForm(0, unfold) if best.width == wide else best
    log.info("stacks: %s; ms of a client's step: %s", chosen, _table(times))
    return chosen


def _table(times: dict[StackForm, float]) -> str:
    return ", ".join(f"{form} {1e3 * taken:.3g}" for form, taken in times.items())


def least_seconds(run: Callable[[], object], device: torch.device) -> float:
    """The fastest of several runs, all of whose kernels have ended."""
    wait = getattr(torch.get_device_module(device), "synchronize", lambda: None)
    taken = []
    for _ in range(COLD + TIMED):
        wait()
        start = time.perf_counter()
        run()
        wait()
        taken.append(time.perf_counter() - start)
    return min(taken[COLD:])
