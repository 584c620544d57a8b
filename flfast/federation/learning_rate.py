"""The learning rate as a function of the round; the same for every client."""

import warnings
from collections.abc import Callable

import torch
from torch.optim.lr_scheduler import LRScheduler

from flfast.state.options import NonNegativeInt


def learning_rates(
    *,
    lr: float,
    rounds: int,
    scheduler: Callable[..., LRScheduler] | None,
    warmup_rounds: NonNegativeInt,
) -> list[float]:
    """Learning rates of rounds 1 to `rounds`.

    Args:
        lr: initial learning rate of the optimizer.
        rounds: number of rounds.
        scheduler: (optimizer) -> a scheduler of `torch.optim.lr_scheduler`, stepped once per
            round; None is constant.
        warmup_rounds: rounds of linear warm-up: in round r <= warmup_rounds, the scheduler's
            rate is multiplied by r / (warmup_rounds + 1).

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
            _step(schedule)
    if min(rates) < 0:
        raise ValueError(
            f"lr_schedule: round {rates.index(min(rates)) + 1} would have learning rate "
            f"{min(rates):g}; allowed: >= 0"
        )
    return rates


def _step(schedule: LRScheduler) -> None:
    with warnings.catch_warnings():
        # torch warns if optimizer.step() was not called before. Only the rates are used here.
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*optimizer.step.*")
        try:
            schedule.step()
        except ArithmeticError as error:
            name = type(schedule).__name__
            raise ValueError(f"lr_schedule.scheduler={name}: {error}") from None
