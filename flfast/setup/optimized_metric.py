"""The metrics that decide: result of a run, early stop, schedule; resolves what is `auto`."""

import logging
from copy import deepcopy

from omegaconf import DictConfig, OmegaConf

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.config.errors import ConfigError
from flfast.config.phases import Phase
from flfast.datamodules.federated import FederatedDataModule
from flfast.engines.engine import Engine
from flfast.lit.local_module import LocalModule
from flfast.tasks.names import ALL_METRICS, falls, headline
from flfast.tasks.task_type import TaskType

log = logging.getLogger(__name__)


def optimized_metric(config: DictConfig, module: LocalModule, data: FederatedDataModule) -> str:
    """The column whose last value is the result of the run."""
    task_type, found = module.task_type, str(config.optimized_metric)
    if not task_type.metrics and found == "auto":
        return "train/loss"
    return _column(found, task_type.headline, module.algorithm, data)


def without_auto(
    phases: list[Phase], module: LocalModule, data: FederatedDataModule
) -> list[Phase]:
    """Copies of the phases with columns, and a module's own learning rate, in place of `auto`."""
    replaced = deepcopy(phases)
    for phase in replaced:
        config = phase.config
        config.optimized_metric = optimized_metric(config, module, data)
        if config.stop.get("metric") == "auto":
            config.stop.metric = config.optimized_metric
        if adapt := config.schedule.adapt:
            adapt.metric = _column(adapt.metric, "loss", module.algorithm, data)
        if config.optimizer.lr == "auto":
            config.optimizer.lr = getattr(module.make_optimizer, "lr", 1.0)
    return replaced


def check_direction(config: DictConfig, hydra: DictConfig) -> None:
    """Refuse a search that would take the worst job for the best one.

    Raises:
        ConfigError: if Optuna maximises a loss, or minimises an accuracy.
    """
    given = OmegaConf.select(hydra, "hydra.sweeper.direction")
    is_sweep = "MULTIRUN" in str(OmegaConf.select(hydra, "hydra.mode"))
    if given is None or not is_sweep or OmegaConf.is_list(given):
        return
    chosen = str(getattr(given, "name", given))
    better = "minimize" if falls(config.optimized_metric) else "maximize"
    if chosen != better:
        raise ConfigError(
            f"hydra.sweeper.direction={chosen} with optimized_metric={config.optimized_metric}: "
            f"allowed: hydra.sweeper.direction={better}"
        )


def _column(column: str, name: str, algorithm: Algorithm, data: FederatedDataModule) -> str:
    """`column`; `auto` is validation of the models that clients would use.

    A central validation set is the server model's. Without one, what clients train by is left.
    """
    if column != "auto":
        return column
    if len(data.central_val):
        return f"val/{name}" if algorithm.evaluate_server else "train/loss"
    return f"val/{name}" if algorithm.personal is None else f"personal_val/{name}"


def check_metrics(config: DictConfig, engine: Engine) -> None:
    """Check that metrics that the run depends on, and fine-tuning, will be measured.

    Raises:
        ValueError: if no evaluation set has the model or the examples for them.
    """
    sets, task_type = engine.evaluation_sets, engine.site.module.task_type
    central = {"train", "global", *["val"] * (len(engine.site.data.central_val) > 0)}
    wanted = {
        "stop.metric": config.stop.get("metric"),
        "schedule.adapt.metric": config.schedule.adapt and config.schedule.adapt.metric,
        "checkpoint.keep_best": config.checkpoint.keep_best,
        "optimized_metric": config.optimized_metric,
    }
    chosen = {f"{key}={metric}": metric for key, metric in wanted.items() if metric is not None}
    for setting, metric in chosen.items():
        _check_metric(setting, metric, sets, central, task_type)
    own = {m for m in chosen.values() if not falls(m) and m.partition("/")[2] not in ALL_METRICS}
    if own and task_type.name == "module":
        log.info("larger is better: %s; see docs/reports.md", ", ".join(sorted(own)))
    holdout, epochs = config.sampler.get("holdout_clients", 0), config.finetune_epochs
    if epochs and sets.isdisjoint({"finetuned", "new_finetuned"}):
        raise ValueError(
            f"finetune_epochs={epochs}: no client has test data of its own; set split.test > 0"
        )
    if holdout and sets.isdisjoint({"new", "new_finetuned"}):
        raise ValueError(
            f"sampler.holdout_clients={holdout}: held-out clients have no test data, or no model "
            f"of the server; set split.test > 0, or finetune_epochs > 0 to train one"
        )


def _check_metric(
    setting: str, metric: str, sets: set[str], central: set[str], task_type: TaskType
) -> None:
    view, _, name = metric.partition("/")
    if view not in {"train", *sets}:
        raise ValueError(
            f"{setting} will not be measured: there is no such model or no such data; "
            f"allowed: {', '.join(sorted(sets))} metrics and train/loss"
        )
    training, validation, test = task_type.logged
    by_view = {"train": training or ("loss",), "val": validation, "personal_val": validation}
    names = by_view.get(view, test) or task_type.metrics
    if not names:
        raise ValueError(f"{setting}: the module measures nothing there; allowed: train/loss")
    # Of clients there are also the spread, and means by model of a family.
    spread = view not in central and any(name.startswith(f"{known}_") for known in names)
    if name not in names and not spread:
        raise ValueError(
            f"{setting}: task={task_type.name} measures {', '.join(names)}; "
            f"allowed: one of them, such as {view}/{headline(names)}"
        )
