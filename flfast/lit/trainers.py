"""The Trainers of a run, one per phase and strategy, and the modules that they train."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.optim import Optimizer

from flfast.datamodules.client_data import ClientDataModule
from flfast.datamodules.evaluation_sets import EvaluationPart
from flfast.lit.batchnorm import freeze
from flfast.lit.local_module import LocalModule
from flfast.lit.strategies.fsdp import FullyShardedStrategy
from flfast.lit.task import evaluation_mode
from flfast.state.fp32 import use_fp32
from flfast.state.plan import RoundPlan, batch_limit
from flfast.state.weights import convert_weights

_TRUE_PRECISION = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}


class CohortModule(L.LightningModule):
    """Manual optimization, because a compiled program takes the local steps.

    Device, precision and strategy are the Trainer's.
    """

    def __init__(self, local: LocalModule, train_clients: Callable[[Sequence[int]], None]) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.local = local
        self.train_clients = train_clients

    def configure_optimizers(self) -> list[Optimizer]:
        """No optimizer: the program updates the parameters."""
        return []

    def on_train_start(self) -> None:
        """Freeze BatchNorm if configured."""
        if self.local.freeze_batchnorm:
            freeze(self.local.model, frozen=True)

    def on_train_end(self) -> None:
        """Unfreeze BatchNorm: Lightning warns of layers that enter training in eval mode."""
        if self.local.freeze_batchnorm:
            freeze(self.local.model, frozen=False)

    def training_step(self, batch: Sequence[int], batch_idx: int) -> None:
        """Train the clients whose ids make up the batch."""
        self.train_clients(batch)


class CohortLoader:
    """A loader of one batch: the ids of the clients that this rank trains in a round."""

    def __init__(self, clients: Sequence[int]) -> None:
        self._clients = clients

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Sequence[int]]:
        yield self._clients


_HOOKS = [name for name in vars(Callback) if name.startswith("on_")] + ["setup", "teardown"]
_RARE = {"on_exception", "on_save_checkpoint", "on_load_checkpoint"}


def overridden_hooks(callback: Callback) -> set[str]:
    """Names of the hooks of Lightning that a callback has of its own."""
    # Read from the object: Lightning's LambdaCallback sets them there, not in its class.
    hooks = {name: getattr(callback, name) for name in _HOOKS}
    base = vars(Callback)
    return {name for name, hook in hooks.items() if getattr(hook, "__func__", hook) != base[name]}


def dtype_of_precision(precision: str) -> torch.dtype:
    """Data type of a model's parameters and buffers with a `trainer.precision`."""
    return _TRUE_PRECISION.get(precision, torch.float32)


class ReusedTrainer:
    """One `fit` per client and stage, one `test` per evaluation pass, one profiler report per run.

    The loops of Lightning take milliseconds. Where nobody watches them, those of cohorts and of
    evaluation run once, with all of Lightning's checks, and afterwards their steps only.

    The model stays on the device, and the device's caches are kept, until `release`.

    Attributes:
        trainer: Lightning's Trainer.
        train_limit: its `batch_limit`, which our loaders apply instead of Lightning.
        clip_value: its `gradient_clip_val`; 0 is off.
        test_limit: its `limit_test_batches`, which our loaders apply, too.
        scaler_state: state of the loss scale before each fit; empty if losses are not scaled.
    """

    def __init__(self, trainer: L.Trainer) -> None:
        self.trainer = cast(Any, trainer)  # its attributes are set dynamically
        self.train_limit = batch_limit(self.trainer.limit_train_batches)
        self.clip_value: float = self.trainer.gradient_clip_val or 0.0
        self.test_limit: float | int = self.trainer.limit_test_batches
        self.trainer.limit_train_batches = self.trainer.limit_test_batches = 1.0
        self._ran: set[str] = set()
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        self.scaler_state: dict[str, Any] = scaler.state_dict() if scaler is not None else {}
        # Lightning's profiler reports after every fit; we want one report per run.
        self._describe = self.trainer.profiler.describe
        self.trainer.profiler.describe = lambda: None
        # The run handles signals. Lightning's handler would start a broadcast that no other rank
        # takes part in.
        connector = self.trainer._signal_connector  # noqa: SLF001 - Lightning has no option for it
        connector.register_signal_handlers = lambda: None
        # Data are ready. Lightning would make all ranks wait here, which fit unequally often.
        self.trainer._data_connector.prepare_data = lambda: None  # noqa: SLF001 - likewise
        # After each fit, Lightning would move the model to the host, and give back all memory that
        # the next one allocates again.
        strategy: Any = self.trainer.strategy
        if type(strategy) is SingleDeviceStrategy:
            cast(Any, strategy).teardown = lambda: None
        self._clear_device = self.trainer.accelerator.teardown
        self.trainer.accelerator.teardown = lambda: None
        # The state of callbacks, such as the patience of EarlyStopping, must not outlive a fit.
        self._callback_states = [
            (callback, deepcopy(callback.state_dict())) for callback in self.trainer.callbacks
        ]

    def fit(self, module: LocalModule, data: ClientDataModule, plan: RoundPlan) -> int:
        """Train one stage of a client; returns the number of local steps."""
        loop = self.trainer.fit_loop
        loop.epoch_progress.reset()
        loop.epoch_loop.automatic_optimization.optim_progress.reset()
        loop.epoch_loop.manual_optimization.optim_step_progress.reset()
        loop.epoch_loop.batch_progress.reset()
        self.trainer.accumulate_grad_batches = data.epoch.accumulate
        self.trainer.gradient_clip_val = self.clip_value or None
        if module.habits.validates:
            self.trainer.limit_val_batches = 1.0
        for callback, state in self._callback_states:
            if state:
                callback.load_state_dict(deepcopy(state))
        if self.scaler_state:  # or a client's steps would depend on who trained before it
            self.trainer.precision_plugin.scaler.load_state_dict(self.scaler_state)
        if not self.trainer.fast_dev_run:  # it sets its own limits
            loop.max_epochs = plan.local_epochs or -1
            loop.epoch_loop.max_steps = plan.local_steps or -1
        self._place(module)
        with module.fitted(data) as (fitted, loaders):
            self.trainer.fit(fitted, datamodule=loaders)
        self.trainer.strategy.optimizers = []  # with their state; the module has what is read
        return self.trainer.global_step

    @property
    def device(self) -> torch.device:
        """This process's device, or the first one of several."""
        device: torch.device = self.trainer.strategy.root_device
        return device

    @cached_property
    def _steps_only(self) -> bool:
        """Whether a loop does nothing but its steps: no hooks, no profile, no other device."""
        watching = (overridden_hooks(callback) - _RARE for callback in self.trainer.callbacks)
        return (
            type(self.trainer.strategy) is SingleDeviceStrategy
            and type(self.trainer.profiler) is PassThroughProfiler
            and not any(watching)
        )

    @contextmanager
    def _steps(self, module: L.LightningModule) -> Iterator[None]:
        """Around steps without a loop: callbacks hear of exceptions, as in a loop."""
        self._place(module)
        try:
            yield
        except BaseException as error:
            for callback in self.trainer.callbacks:
                callback.on_exception(self.trainer, module, error)
            raise

    def _place(self, module: L.LightningModule) -> None:
        """Move a module to the device. Lightning moves only the part that it trains."""
        sharded = isinstance(self.trainer.strategy, FullyShardedStrategy)
        if not sharded and next(module.parameters()).device != self.device:
            module.to(self.device)

    def fit_cohort(self, module: CohortModule, clients: Sequence[int]) -> None:
        """Train all clients of a rank in one training step; see `CohortModule`."""
        if "fit" in self._ran and self._steps_only:
            context = self.trainer.precision_plugin.train_step_context()
            with self._steps(module), torch.enable_grad(), context:
                module.on_train_start()
                module.training_step(clients, 0)
                module.on_train_end()
            return
        self._ran.add("fit")
        loop = self.trainer.fit_loop
        loop.epoch_progress.reset()
        loop.epoch_loop.batch_progress.reset()
        # The program does both itself; Lightning refuses them with manual optimization.
        self.trainer.accumulate_grad_batches, self.trainer.gradient_clip_val = 1, None
        loop.max_epochs, loop.epoch_loop.max_steps = 1, -1
        self.trainer.fit(module, train_dataloaders=CohortLoader(clients))

    def test(self, module: L.LightningModule, data: EvaluationPart) -> None:
        """One evaluation pass."""
        if "test" not in self._ran or not self._steps_only:
            self._ran.add("test")
            self.trainer.test(module, datamodule=data, verbose=False)
            return
        data.trainer = self.trainer
        self.trainer.strategy.connect(module)
        precision, device = self.trainer.precision_plugin, self.device
        batches, context = data.test_dataloader(), precision.test_step_context()
        with self._steps(module), torch.no_grad(), evaluation_mode(module), context:
            module.on_test_start()
            for batch_idx, batch in enumerate(map(precision.convert_input, batches)):
                if device.type != "cpu":
                    batch = data.transfer_batch_to_device(batch, device, 0)
                module.test_step(data.on_after_batch_transfer(batch, 0), batch_idx)

    def release(self) -> None:
        """Move the model to the host, and give back the device's unused memory."""
        strategy = self.trainer.strategy
        if isinstance(strategy, SingleDeviceStrategy) and strategy.lightning_module is not None:
            strategy.lightning_module.cpu()
        self._clear_device()

    def close(self) -> None:
        """Release the device, and print the profiler's report of all stages."""
        self.release()
        profiler = self.trainer.profiler
        profiler.setup(stage="run", log_dir=profiler.dirpath)
        self._describe()


class Trainers:
    """Trainers and modules by plan; created at first use and then reused.

    The module is converted to the data type of the plan's precision.
    """

    def __init__(
        self, module: LocalModule, make_trainer: Callable[[RoundPlan], L.Trainer]
    ) -> None:
        self._module, self.make_trainer = module, make_trainer
        self._trainers: dict[tuple[int, str, str], ReusedTrainer] = {}
        self._current: ReusedTrainer | None = None
        self._sharded: dict[tuple[torch.dtype, int], LocalModule] = {}
        self._dtype = torch.float32

    def trainer(self, plan: RoundPlan) -> ReusedTrainer:
        """The plan's Trainer; from here on, products have the plan's precision."""
        dtype = dtype_of_precision(plan.precision)
        if dtype != self._dtype:
            # Converted before weights are written, or they would be rounded to the old dtype.
            convert_weights(self._module, dtype)
            self._dtype = dtype
        use_fp32(plan.fp32_precision)
        key = (plan.phase, plan.strategy, plan.shard)
        if key not in self._trainers:
            self._trainers[key] = ReusedTrainer(self.make_trainer(plan))
        trainer = self._trainers[key]
        if self._current is not None and self._current.device != trainer.device:
            self._current.release()
        self._current = trainer
        return trainer

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
        """Release the devices, and print the profilers' reports of the run."""
        use_fp32(None)
        for trainer in self._trainers.values():
            trainer.close()
