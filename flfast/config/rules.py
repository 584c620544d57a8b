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


def _split(config: Config) -> str | None:
    val, test = config["split"]["val"], config["split"]["test"]
    if val + test >= 1:
        return f"split.val={val} split.test={test}: together they must be < 1"
    return None


def _stop(config: Config) -> str | None:
    metric = config["stop"].get("metric")
    if metric is None or metric in ("auto", *OPTIMIZED):
        return None
    return f"stop.metric={metric}: must be one of auto, {', '.join(OPTIMIZED)}"


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
    _split,
    _stop,
    _init_from,
    _files,
    _loggers,
    _cohort_size,
    _adapter,
    _packages,
    refused,
    *HARDWARE_RULES,
)
