"""Rules about combinations of settings: each returns a problem, or None. Torch-free."""

import multiprocessing
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from flfast.config.combinations import refused
from flfast.config.rule import Config, Rule, choice, shown
from flfast.output.results.columns import VIEWS
from flfast.tasks.names import ALL_METRICS

_MAX_PER_CORE = 64
"""Most threads or processes per core: far more than can be useful, but harmless to start."""

_NEEDED = (
    ("logger=tensorboard", ("tensorboard", "tensorboardX"), "tensorboard"),
    ("logger=wandb", ("wandb",), "wandb"),
    ("logger=mlflow", ("mlflow",), "mlflow"),
    ("adapter=lora", ("peft",), "lora"),
    ("adapter=ia3", ("peft",), "lora"),
    ("privacy=", ("dp_accounting",), "privacy"),
    ("privacy.secure=", ("cryptography",), "privacy"),
    ("secure=", ("cryptography",), "secure"),
)
"""Beginnings of settings, packages of which these need one, and the extra that has them."""

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


def _daemonic(config: Config) -> str | None:
    workers = config["loader"]["num_workers"]
    return cannot_start(f"loader.num_workers={workers}", allowed="0") if workers else None


def cannot_start(setting: str, *, allowed: str) -> str | None:
    """Why a setting that starts processes is refused in this process; None if it can start them.

    The setting is a key with its value; `allowed` is a value that starts none.
    """
    if not multiprocessing.process.current_process().daemon:
        return None
    return (
        f"{setting} in a daemonic process, such as one of multiprocessing.Pool, which cannot "
        f"start processes; allowed: {allowed}, or concurrent.futures.ProcessPoolExecutor"
    )


def _devices(config: Config) -> str | None:
    devices = config["trainer"]["devices"]
    accelerator = config["trainer"]["accelerator"]
    if not devices or (isinstance(devices, int) and devices < -1):
        return f"trainer.devices={devices}: must be a count >= 1, -1, auto, or a list of indices"
    wants_gpu = accelerator in {"gpu", "cuda"} or isinstance(devices, list)
    if accelerator == "cpu" and isinstance(devices, list):
        return f"trainer.devices={devices} with trainer.accelerator=cpu: must be a count"
    if wants_gpu and not _may_have_gpu():
        return (
            f"trainer.accelerator={accelerator} trainer.devices={devices}: there is no GPU here; "
            f"allowed: trainer.accelerator=cpu with a count of devices"
        )
    return None


def _num_processes(config: Config) -> str | None:
    most = _MAX_PER_CORE * (os.cpu_count() or 1)
    requested = {
        "threads": config["threads"],
        "loader.num_workers": config["loader"]["num_workers"],
        "trainer.devices": config["trainer"]["devices"],
    }
    for key, value in requested.items():
        if isinstance(value, int) and value > most:
            return f"{key}={value}: allowed: up to {most}, {_MAX_PER_CORE} per core"
    return None


def _sync_batchnorm(config: Config) -> str | None:
    if not config["trainer"].get("sync_batchnorm"):
        return None
    strategy = config["strategy"]
    shards_batches = strategy["name"] in {"auto", "ddp"} and strategy.get("shard") == "batch"
    if not shards_batches or config["trainer"]["accelerator"] == "cpu" or not _may_have_gpu():
        return "trainer.sync_batchnorm=True needs strategy=ddp strategy.shard=batch on GPUs"
    return None


def _fsdp(config: Config) -> str | None:
    strategy, trainer = config["strategy"], config["trainer"]
    has_group_params = strategy.get("group_params") is not None
    if (strategy["name"] == "fsdp") != has_group_params:
        return (
            f"strategy.name={strategy['name']} strategy.group_params="
            f"{shown(strategy.get('group_params'))}: fsdp needs this option and no other strategy "
            f"has it; set strategy=fsdp, which sets both"
        )
    if not has_group_params:
        return None
    if "shard" in strategy:
        return f"strategy.shard={strategy['shard']} with strategy=fsdp: only ddp has this option"
    if trainer.get("inference_mode"):
        return (
            "trainer.inference_mode=True with strategy=fsdp: parameters gathered in inference "
            "mode cannot be trained; use false"
        )
    if trainer["accelerator"] in {"mps", "tpu"}:
        return (
            f"trainer.accelerator={trainer['accelerator']} with strategy=fsdp: must be cpu or gpu"
        )
    return None


def _may_have_gpu() -> bool:
    """False only if it is certain, without importing torch, that torch will find no GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}:
        return False
    nodes = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/proc/driver/nvidia/version")
    return sys.platform != "linux" or any(Path(node).exists() for node in nodes)


def _epochs_or_steps(config: Config) -> str | None:
    epochs, steps = config["local_epochs"], config["local_steps"]
    if (epochs is None) == (steps is None):
        return (
            f"local_epochs={shown(epochs)} local_steps={shown(steps)}: exactly one must be set; "
            f"the other must be null"
        )
    return None


def _split(config: Config) -> str | None:
    val, test = config["split"]["val"], config["split"]["test"]
    if val + test >= 1:
        return f"split.val={val} split.test={test}: together they must be < 1"
    return None


def _metrics(config: Config) -> str | None:
    """A user's module has names of its own; `setup/optimized_metric.py` checks them."""
    adapt, keep = config["schedule"]["adapt"] or {}, config["checkpoint"]["keep_best"]
    for key, metric, allowed in (
        ("stop.metric", config["stop"].get("metric"), ("auto", *OPTIMIZED)),
        ("optimized_metric", config["optimized_metric"], ("auto", *OPTIMIZED)),
        ("schedule.adapt.metric", adapt.get("metric"), ("auto", *SELECTING)),
        ("checkpoint.keep_best", keep, SELECTING),
    ):
        if metric is not None and metric not in allowed and config["task"] != "module":
            return f"{key}={metric}: must be one of {', '.join(allowed)}"
    return None


def _files(config: Config) -> str | None:
    read = [group for group, choices in _FILES.items() if choice(config[group]) in choices]
    paths = {f"{group}.path": config[group].get("path") for group in read}
    if config["init_from"] is not None:
        paths["init_from"] = config["init_from"]
    missing = (key for key, path in paths.items() if not Path(str(path)).is_file())
    return next((f"{key}={shown(paths[key])}: there is no such file" for key in missing), None)


def _packages(config: Config) -> str | None:
    names = {group: choice(config[group]) for group in ("adapter", "privacy", "secure")}
    loggers = [f"logger={name}" for name in config["logger"] or {}]
    settings = [*loggers, *(f"{group}={name}" for group, name in names.items() if name != "none")]
    if config["privacy"].get("secure"):
        settings.append("privacy.secure=True")
    for start, packages, extra in _NEEDED:
        for setting in settings:
            if setting.startswith(start) and not any(map(find_spec, packages)):
                return f"{setting}: {packages[0]} is not installed; install flfast[{extra}]"
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


def _rate(config: Config) -> str | None:
    optimizer = config["optimizer"]
    if optimizer["lr"] != "auto" or optimizer["_target_"].endswith(".ModuleOptimizer"):
        return None
    return "optimizer.lr=auto: allowed: a number > 0; auto is that of optimizer=module"


RULES: tuple[Rule, ...] = (
    _epochs_or_steps,
    _rate,
    _split,
    _metrics,
    _files,
    _cohort_size,
    _packages,
    refused,
    _daemonic,
    _devices,
    _num_processes,
    _sync_batchnorm,
    _fsdp,
)
