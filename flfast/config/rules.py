"""Rules about combinations of settings: each returns a problem, or None. Torch-free."""

from importlib.util import find_spec
from pathlib import Path

from flfast.config.combinations import refused
from flfast.config.hardware_rules import HARDWARE_RULES
from flfast.config.rule import Config, Rule, choice, shown
from flfast.output.results.columns import ALL_METRICS, VIEWS

_EXTRAS = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
}
"""Loggers, and the packages of which they need one."""

_FILES = {
    "sampler": {"from_file"},
    "devices": {"from_trace"},
    "partition": {"distribution", "from_file"},
}
"""Options that read the file `path`, by group."""

OPTIMIZED = (*(f"{view}/{metric}" for view in VIEWS for metric in ALL_METRICS), "train/loss")
"""Columns that a run can be judged by."""

SELECTING = tuple(
    name for name in OPTIMIZED if name.startswith(("val/", "personal_val/", "train/"))
)
"""Columns that may change a run: none is measured on test data."""


def _epochs_or_steps(config: Config) -> str | None:
    epochs, steps = config["local_epochs"], config["local_steps"]
    if (epochs is None) == (steps is None):
        return (
            f"local_epochs={shown(epochs)} local_steps={shown(steps)}: exactly one must be set; "
            f"the other must be null"
        )
    return None


def _batch_size(config: Config) -> str | None:
    if config["batch_size"] == 0:
        return "batch_size=0: must be >= 1, or -1 for all of a client's examples"
    return None


def _overwrite(config: Config) -> str | None:
    if config["overwrite"] and config["resume"] == "auto":
        return (
            "overwrite=true with resume=auto: a run is replaced or goes on; allowed: one of them"
        )
    return None


def _full_batch(config: Config) -> str | None:
    accumulate = config["trainer"]["accumulate_grad_batches"]
    if config["batch_size"] == -1 and accumulate > 1:
        return (
            f"trainer.accumulate_grad_batches={accumulate} with batch_size=-1: a batch is already "
            f"all of a client's examples; use micro_batch to bound memory"
        )
    return None


def _auto_batch(config: Config) -> str | None:
    if config["batch_size"] != "auto":
        return None
    if config["micro_batch"] is not None:
        return (
            f"micro_batch={config['micro_batch']} with batch_size=auto: with micro-batches a "
            f"batch of any size fits; use batch_size=-1 or a number, or micro_batch=null"
        )
    adapt = config["schedule"]["adapt"]
    if adapt and adapt["action"] == "double_batch":
        return (
            "schedule.adapt.action=double_batch with batch_size=auto: the batch is already the "
            "largest that fits; use schedule.adapt.action=halve_lr, or a number"
        )
    return None


def _split(config: Config) -> str | None:
    val, test = config["split"]["val"], config["split"]["test"]
    if val + test >= 1:
        return f"split.val={val} split.test={test}: together they must be < 1"
    return None


def _validation_metrics(config: Config) -> str | None:
    adapt = config["schedule"]["adapt"]
    wanted = {
        "optimized_metric": config["optimized_metric"],
        "schedule.adapt.metric": adapt and adapt["metric"],
        "checkpoint.keep_best": config["checkpoint"]["keep_best"],
    }
    for key, metric in wanted.items():
        if metric and (metric == "auto" or "val/" in metric) and config["split"]["val"] == 0:
            return f"{key}={metric} needs validation data; set split.val > 0"
    return None


def _stop(config: Config) -> str | None:
    metric = config["stop"].get("metric")
    if metric is None or metric in ("auto", *OPTIMIZED):
        return None
    return f"stop.metric={metric}: must be one of auto, {', '.join(OPTIMIZED)}"


def _best_checkpoint(config: Config) -> str | None:
    every, best = config["checkpoint"]["every"], config["checkpoint"]["keep_best"]
    if best is None:
        return None
    if every == 0:
        return f"checkpoint.keep_best={best} with checkpoint.every=0: no checkpoint is written"
    return None


def _init_from(config: Config) -> str | None:
    path = config["init_from"]
    if path is not None and not Path(path).is_file():
        return f"init_from={path}: there is no such file"
    return None


def _files(config: Config) -> str | None:
    for key, choices in _FILES.items():
        path = config[key].get("path")
        if choice(config[key]) in choices and not Path(str(path)).is_file():
            return f"{key}.path={shown(path)}: there is no such file"
    return None


def _loggers(config: Config) -> str | None:
    for name, packages in _EXTRAS.items():
        if name in (config["logger"] or {}) and not any(map(find_spec, packages)):
            return f"logger={name}: it is not installed; install flfast[{name}]"
    return None


def _packages(config: Config) -> str | None:
    name, secure = choice(config["privacy"]), choice(config["secure"])
    if name != "none" and not find_spec("dp_accounting"):
        return f"privacy={name}: dp-accounting is not installed; install flfast[privacy]"
    if config["privacy"].get("secure") and not find_spec("cryptography"):
        return "privacy.secure=True: cryptography is not installed; install flfast[privacy]"
    if secure != "none" and not find_spec("cryptography"):
        return f"secure={secure}: cryptography is not installed; install flfast[secure]"
    return None


def _cohort_size(config: Config) -> str | None:
    sampler = config["sampler"]
    count, fraction = sampler.get("count"), sampler.get("fraction", 1.0)
    if count is not None and fraction != 1.0:
        return (
            f"sampler.count={count} sampler.fraction={fraction}: both set the size of cohorts; "
            f"allowed: one of them, such as sampler.count={count} sampler.fraction=1.0"
        )
    return None


def _adapter(config: Config) -> str | None:
    name = choice(config["adapter"])
    if name in {"lora", "ia3"} and not find_spec("peft"):
        return f"adapter={name}: peft is not installed; install flfast[lora]"
    if name != "none" and config["strategy"]["name"] == "fsdp":
        return (
            f"adapter={name} with strategy=fsdp: every rank has the whole frozen base, so there "
            f"is nothing to shard; use strategy=ddp"
        )
    return None


RULES: tuple[Rule, ...] = (
    _batch_size,
    _epochs_or_steps,
    _overwrite,
    _full_batch,
    _auto_batch,
    _split,
    _validation_metrics,
    _stop,
    _best_checkpoint,
    _init_from,
    _files,
    _loggers,
    _cohort_size,
    _adapter,
    _packages,
    refused,
    *HARDWARE_RULES,
)
