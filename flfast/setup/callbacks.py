"""Builds the callbacks of a run, and refuses those that could not do their work in it."""

import inspect
import logging
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import lightning as L
from hydra.utils import instantiate
from lightning.pytorch import callbacks as shipped
from omegaconf import DictConfig

from flfast.config.errors import ConfigError
from flfast.config.own import OWN, Own
from flfast.datamodules.federated import FederatedDataModule
from flfast.federation.hooks import HOOKS
from flfast.lit.trainers import overridden_hooks
from flfast.output.callbacks.final_weights import FinalWeights
from flfast.output.callbacks.text_samples import TextSamples
from flfast.setup.user_code import described
from flfast.state.messages import did_you_mean

log = logging.getLogger(__name__)

_LOGS = "it logs steps of local training, and loggers of a run get rounds; allowed: "
_KEEPS = "checkpoints are of the whole federation, and the run writes them; allowed: "
_STEPS = "local steps are cut before a client trains; allowed: "
_REFUSED: dict[type[L.Callback], str] = {
    shipped.StochasticWeightAveraging: "it would average over clients; allowed: "
    "algorithm=fedavgm, or an algorithm with a `finish`",
    shipped.Checkpoint: f"{_KEEPS}checkpoint.every, checkpoint.keep_best",
    shipped.OnExceptionCheckpoint: f"{_KEEPS}checkpoint.every, checkpoint.keep_best",
    shipped.LearningRateMonitor: f"{_LOGS}the column plan/lr",
    shipped.DeviceStatsMonitor: f"{_LOGS}trainer.profiler=pytorch",
    shipped.ThroughputMonitor: f"{_LOGS}the column train/samples_per_s",
    shipped.GradientAccumulationScheduler: f"{_STEPS}trainer.accumulate_grad_batches, also in "
    "schedule.phases",
    shipped.BatchSizeFinder: f"{_STEPS}batch_size=auto",
    shipped.LearningRateFinder: "it would change the rate of some clients; allowed: "
    "hparams_search=fedavg_lr",
    shipped.BaseFinetuning: "what a client trains is what the algorithm says; allowed: "
    "adapter=head, algorithm=fedrep, or an algorithm with `stages`",
    shipped.ModelPruning: "it renames the weights that clients send; allowed: compression=topk",
    shipped.BasePredictionWriter: "a run predicts nothing that it could write; allowed: "
    "python -m flfast.evaluate, which writes predictions.csv",
}
"""Callbacks of Lightning that cannot do their work in a run, and what does it."""

_NEVER = ("on_predict_", "on_sanity_check_", "on_save_checkpoint", "on_load_checkpoint")
"""Hooks of Lightning that no run calls."""


def build_callbacks(
    config: DictConfig, data: FederatedDataModule, monitored: Sequence[str], objects: Own
) -> list[L.Callback]:
    """The configured callbacks; they get the hooks of rounds and of local training.

    Args:
        config: names them; a node may stand for one of `objects`.
        data: of the run.
        monitored: names that local training logs on a client's validation examples.
        objects: objects of a Python program.

    Raises:
        ConfigError: if one of them cannot work within a run, with what works.
        ValueError: if one has a prompt that is no text of the examples.
    """
    nodes = {name: node for name, node in (config.callbacks or {}).items() if node is not None}
    callbacks = {name: _made(name, node, objects) for name, node in nodes.items()}
    for name, callback in callbacks.items():
        if problem := next(_problems(callback, config, data, monitored), None):
            raise ConfigError(f"callbacks.{name}: {type(callback).__name__}{problem}")
        if isinstance(callback, TextSamples):
            callback.check(data.examples)
        for unused in _unused_hooks(callback, validates=bool(config.trainer.limit_val_batches)):
            log.warning("callbacks.%s: %s", name, unused)
    if not any(isinstance(callback, FinalWeights) for callback in callbacks.values()):
        log.info("callbacks: none writes model.pt")
    return [*callbacks.values()]


def _made(name: str, node: DictConfig, objects: Own) -> Any:
    if OWN not in node:
        return instantiate(node)
    if name not in objects.callbacks:
        raise ConfigError(
            f"callbacks.{name}={node['_target_']} is an object of a Python program; allowed: "
            f"flfast.run(..., callbacks=[...]) in a program that has it"
        )
    return objects.callbacks[name]


def refusal(callback: object) -> str | None:
    """Why a callback of Lightning cannot do its work in a run; None if it can."""
    return next((why for kind, why in _REFUSED.items() if isinstance(callback, kind)), None)


def _problems(
    callback: object, config: DictConfig, data: FederatedDataModule, monitored: Sequence[str]
) -> Iterator[str]:
    """Why a callback cannot work, in words that follow its name."""
    if not isinstance(callback, L.Callback):
        yield " is no callback of Lightning; allowed: a subclass of lightning.Callback"
        return
    if (why := refusal(callback)) is not None:
        yield f": {why}"
    if isinstance(callback, shipped.ProgressBar):
        if not config.trainer.enable_progress_bar:
            yield ": shows each fit of each client; allowed: trainer.enable_progress_bar=true"
        if type(callback) is shipped.ProgressBar:
            yield ": shows nothing itself; allowed: TQDMProgressBar or RichProgressBar"
    if isinstance(callback, shipped.EarlyStopping):
        yield from _problems_of_stopping(callback.monitor, config, data, monitored)
    yield from _problems_of_state(callback)


def _problems_of_stopping(
    monitor: str, config: DictConfig, data: FederatedDataModule, monitored: Sequence[str]
) -> Iterator[str]:
    if monitor not in monitored or not config.trainer.limit_val_batches:
        names = " or ".join(monitored)
        yield (
            f"(monitor={monitor}) ends the epochs of a client; allowed: {names}, with "
            "trainer.limit_val_batches=1.0; stop=plateau ends the run"
        )
    if not len(data.splits["val"].indices):
        yield (
            ": no client has validation examples; allowed: split.val > 0, with data that have no "
            "validation set of their own"
        )


def _problems_of_state(callback: L.Callback) -> Iterator[str]:
    try:
        if state := callback.state_dict():
            callback.load_state_dict(deepcopy(state))
    except Exception as error:  # noqa: BLE001 - it is the user's, or Lightning's
        yield f": its state cannot be loaded, as it is for each client: {described(error)}"
    averaging: Any = getattr(shipped, "WeightAveraging", ())  # since Lightning 2.6
    if isinstance(callback, averaging) and callback.should_update(epoch_idx=2**40):
        yield ": counts epochs on from client to client; allowed: updates after steps"


def _unused_hooks(callback: L.Callback, *, validates: bool) -> Iterator[str]:
    """What a user's callback defines that is never called."""
    never = (*_NEVER, *(() if validates else ("on_validation_",)))
    for name in sorted(overridden_hooks(callback)):
        if name.startswith(never) and _is_of_user(getattr(callback, name)):
            reason = "without trainer.limit_val_batches" if "validation" in name else "in a run"
            yield f"its {name} is never called {reason}"
    methods = inspect.getmembers(type(callback), inspect.isfunction)
    for name, method in methods:
        known = hasattr(L.Callback, name) or name in {*HOOKS, "on_turn"}
        if name.startswith("on_") and not known and _is_of_user(method):
            yield f"its {name} is no hook{did_you_mean(name, HOOKS)}"


def _is_of_user(hook: object) -> bool:
    """Whether neither Lightning nor flfast defines a hook; Lightning's serve all its stages."""
    return not getattr(hook, "__module__", "").startswith(("lightning.", "flfast."))
