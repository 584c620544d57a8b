"""The learning rate as a function of the round, the same for every client."""

import warnings
from collections.abc import Callable

import torch
from torch.optim.lr_scheduler import LRScheduler

from flfast.options import NonNegativeInt


def learning_rates(
    *,
    lr: float,
    rounds: int,
    scheduler: Callable[..., LRScheduler] | None,
    warmup_rounds: NonNegativeInt,
) -> list[float]:
    """Learning rates of rounds 1 to `rounds`.

    Args:
        lr: of the optimizer, what the schedule is relative to.
        rounds: how many.
        scheduler: (optimizer) -> any scheduler of `torch.optim.lr_scheduler`, stepped once a
            round; None is constant.
        warmup_rounds: linear warm-up, lr * r / (warmup_rounds + 1) in round r <= warmup_rounds,
            multiplied with what the scheduler says.

    Raises:
        ValueError: if the scheduler needs a metric, such as ReduceLROnPlateau, or goes below 0.
    """
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
    schedule = scheduler(optimizer) if scheduler else None
    if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ValueError(
            "lr_schedule.scheduler=ReduceLROnPlateau needs a metric; allowed: schedulers that "
            "depend on the round alone"
        )
    rates: list[float] = []
    for round_idx in range(1, rounds + 1):
        warmup = min(1.0, round_idx / (warmup_rounds + 1))
        rates.append(float(optimizer.param_groups[0]["lr"]) * warmup)
        if schedule is not None:
            with warnings.catch_warnings():
                # torch expects optimizer.step() before; here only the rates are of interest.
                warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*optimizer.step.*")
                try:
                    schedule.step()
                except ArithmeticError as error:
                    name = type(schedule).__name__
                    raise ValueError(f"lr_schedule.scheduler={name}: {error}") from None
    if min(rates) < 0:
        raise ValueError(
            f"lr_schedule: round {rates.index(min(rates)) + 1} would have learning rate "
            f"{min(rates):g}; allowed: >= 0"
        )
    return rates
