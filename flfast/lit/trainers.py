"""The Trainers of a run, one per phase and strategy, and the modules that they train."""

from collections.abc import Callable

import lightning as L
import torch

from flfast.lit.local_module import LocalModule
from flfast.lit.reused_trainer import ReusedTrainer
from flfast.lit.strategies.fsdp import FullyShardedStrategy
from flfast.plan import RoundPlan

TRUE_PRECISION = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}


class Trainers:
    """Trainers and modules by plan; created at first use and then reused.

    Args:
        module: model, algorithm and optimizer; converted to the dtype of the plan's precision.
        make_trainer: plan -> new Trainer for its devices and precision.
    """

    def __init__(
        self, module: LocalModule, make_trainer: Callable[[RoundPlan], L.Trainer]
    ) -> None:
        self._module, self.make_trainer = module, make_trainer
        self._trainers: dict[tuple[int, str, str], ReusedTrainer] = {}
        self._sharded: dict[tuple[torch.dtype, int], LocalModule] = {}
        self._dtype = torch.float32

    def trainer(self, plan: RoundPlan) -> ReusedTrainer:
        """The plan's Trainer."""
        dtype = TRUE_PRECISION.get(plan.precision, torch.float32)
        if dtype != self._dtype:
            # Converted before weights are written, or they would be rounded to the old dtype.
            self._module.to(dtype)
            self._dtype = dtype
        key = (plan.phase, plan.strategy, plan.shard)
        if key not in self._trainers:
            self._trainers[key] = ReusedTrainer(self.make_trainer(plan))
        return self._trainers[key]

    def module(self, plan: RoundPlan) -> LocalModule:
        """The module that the plan's Trainer trains: a sharded copy with FSDP."""
        strategy = self.trainer(plan).trainer.strategy
        if not isinstance(strategy, FullyShardedStrategy):
            return self._module
        key = (self._dtype, strategy.group_params)
        if key not in self._sharded:
            self._sharded[key] = strategy.shard(self._module)
        return self._sharded[key]

    def close(self) -> None:
        """Print the profilers' reports of the run."""
        for trainer in self._trainers.values():
            trainer.close()
