"""A Trainer that is used again and again, and starts each time as if it were new."""

from copy import deepcopy
from typing import Any, cast

import lightning as L

from flfast.datamodules.evaluation_sets import EvaluationPart
from flfast.datamodules.federated import ClientDataModule
from flfast.plan import RoundPlan


class ReusedTrainer:
    """One Trainer, one `fit` per client, one `test` per evaluation pass, one report of a profiler.

    Attributes:
        trainer: Lightning's.
        train_limit: what its `limit_train_batches` asked for; loaders are cut to it beforehand.
        test_limit: the same for `limit_test_batches`.
    """

    def __init__(self, trainer: L.Trainer) -> None:
        self.trainer = cast(Any, trainer)  # its attributes are set dynamically
        self.train_limit: float | int = self.trainer.limit_train_batches
        self.clip_value: float = self.trainer.gradient_clip_val or 0.0
        self.test_limit: float | int = self.trainer.limit_test_batches
        self.trainer.limit_train_batches = self.trainer.limit_test_batches = 1.0
        # Lightning's profiler reports at the end of every fit; one report a run is meant.
        self._describe = self.trainer.profiler.describe
        self.trainer.profiler.describe = lambda: None
        # Signals are the run's; in a world of ranks Lightning's handler would join in a broadcast.
        connector = self.trainer._signal_connector  # noqa: SLF001 - Lightning has no option for it
        connector.register_signal_handlers = lambda: None
        # What Lightning calls a callback's state belongs to one fit: EarlyStopping's patience.
        self._callback_states = [
            (callback, deepcopy(callback.state_dict())) for callback in self.trainer.callbacks
        ]

    def fit(self, module: L.LightningModule, data: ClientDataModule, plan: RoundPlan) -> int:
        """Local training of one client; returns the number of local steps."""
        loop = self.trainer.fit_loop
        loop.epoch_progress.reset()
        loop.epoch_loop.automatic_optimization.optim_progress.reset()
        loop.epoch_loop.batch_progress.reset()
        self.trainer.accumulate_grad_batches = data.epoch.accumulate
        self.trainer.gradient_clip_val = self.clip_value or None
        for callback, state in self._callback_states:
            if state:
                callback.load_state_dict(deepcopy(state))
        if not self.trainer.fast_dev_run:  # which sets limits of its own
            loop.max_epochs = plan.local_epochs or -1
            loop.epoch_loop.max_steps = plan.local_steps or -1
        self.trainer.fit(module, datamodule=data)
        return self.trainer.global_step

    def fit_cohort(self, module: L.LightningModule, data: L.LightningDataModule) -> None:
        """Local training of clients that a program takes through their steps."""
        loop = self.trainer.fit_loop
        loop.epoch_progress.reset()
        loop.epoch_loop.batch_progress.reset()
        # Part of the program; Lightning refuses them for manual optimization.
        self.trainer.accumulate_grad_batches, self.trainer.gradient_clip_val = 1, None
        loop.max_epochs, loop.epoch_loop.max_steps = 1, -1
        self.trainer.fit(module, datamodule=data)

    def test(self, module: L.LightningModule, data: EvaluationPart) -> None:
        """One evaluation pass."""
        self.trainer.test(module, datamodule=data, verbose=False)

    def close(self) -> None:
        """Let the profiler describe the whole run."""
        self._describe()
