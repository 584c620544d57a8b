"""Rules about combinations of settings, files, packages and devices. Torch-free.

What options need and break is in `combinations.py`.
"""

import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flfast.config.combinations import refused
from flfast.config.values import Config, choice, setting, value_of
from flfast.output.results.columns import VIEWS
from flfast.tasks.names import ALL_METRICS

_PER_CORE = 64
"""Most threads or processes per core: far more than can be useful, but harmless to start."""

_MOST = _PER_CORE * (os.cpu_count() or 1)

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
    "sampler.path": {"from_file"},
    "devices.path": {"from_trace"},
    "partition.path": {"distribution", "from_file"},
}
"""Options that read a file, by the key that names it."""

OPTIMIZED = (*(f"{view}/{metric}" for view in VIEWS for metric in ALL_METRICS), "train/loss")
"""Columns that a run can be judged by."""

SELECTING = tuple(
    name for name in OPTIMIZED if name.startswith(("val/", "personal_val/", "train/"))
)
"""Columns that may change a run: none is measured on test data."""


_METRICS = {
    "stop.metric": ("auto", *OPTIMIZED),
    "optimized_metric": ("auto", *OPTIMIZED),
    "schedule.adapt.metric": ("auto", *SELECTING),
    "checkpoint.keep_best": SELECTING,
}
"""Columns that a key may name."""

_Values = Callable[[str], Any]
"""Dotted key -> value in a config; None if there is none."""


def _is_unknown_metric(key: str, of: _Values) -> bool:
    """A user's module has names of its own; `setup/optimized_metric.py` checks them."""
    return of("task") != "module" and of(key) not in (None, *_METRICS[key])


def _lacks_file(key: str, of: _Values) -> bool:
    return choice(of(key.partition(".")[0])) in _FILES[key] and not Path(str(of(key))).is_file()


def _may_have_gpu() -> bool:
    """False only if it is certain, without importing torch, that torch will find no GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}:
        return False
    nodes = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/proc/driver/nvidia/version")
    return sys.platform != "linux" or any(Path(node).exists() for node in nodes)


def _lacks_gpu(of: _Values) -> bool:
    accelerator, devices = of("trainer.accelerator"), of("trainer.devices")
    listed = isinstance(devices, list) and bool(devices) and accelerator != "cpu"
    return (accelerator in {"gpu", "cuda"} or listed) and not _may_have_gpu()


def _lacks_batches_on_gpus(of: _Values) -> bool:
    shards = of("strategy.name") in {"auto", "ddp"} and of("strategy.shard") == "batch"
    return not shards or of("trainer.accelerator") == "cpu" or not _may_have_gpu()


def _is_fsdp(of: _Values) -> bool:
    return of("strategy.name") == "fsdp" and of("strategy.group_params") is not None


def _count(value: Any) -> int:
    """The value; 1 if it is no number, such as `auto` or a list."""
    return value if isinstance(value, int) else 1


def _is_too_many(key: str, of: _Values) -> bool:
    return _count(of(key)) > _MOST


_RULES: Mapping[str, Callable[[_Values], object]] = {
    "{local_epochs} {local_steps}: exactly one must be set; the other must be null": (
        lambda of: (of("local_epochs") is None) == (of("local_steps") is None)
    ),
    "{optimizer.lr}: allowed: a number > 0; auto is that of optimizer=module": lambda of: (
        of("optimizer.lr") == "auto" and not of("optimizer._target_").endswith(".ModuleOptimizer")
    ),
    "{split.val} {split.test}: together they must be < 1": (
        lambda of: of("split.val") + of("split.test") >= 1
    ),
    **{
        f"{{{key}}}: must be one of {', '.join(allowed)}": partial(_is_unknown_metric, key)
        for key, allowed in _METRICS.items()
    },
    **{f"{{{key}}}: there is no such file": partial(_lacks_file, key) for key in _FILES},
    "{init_from}: there is no such file": (
        lambda of: of("init_from") is not None and not Path(of("init_from")).is_file()
    ),
    "{sampler.count} {sampler.fraction}: both set the size of cohorts; allowed: one of them, such "
    "as {sampler.count} sampler.fraction=1.0": (
        lambda of: of("sampler.count") is not None and of("sampler.fraction") not in (None, 1.0)
    ),
    "{trainer.devices}: must be a count >= 1, -1, auto, or a list of indices": (
        lambda of: of("trainer.devices") in (0, []) or _count(of("trainer.devices")) < -1
    ),
    "{trainer.devices} with trainer.accelerator=cpu: must be a count": (
        lambda of: of("trainer.accelerator") == "cpu" and isinstance(of("trainer.devices"), list)
    ),
    "{trainer.accelerator} {trainer.devices}: there is no GPU here; allowed: "
    "trainer.accelerator=cpu with a count of devices": _lacks_gpu,
    **{
        f"{{{key}}}: allowed: up to {_MOST}, {_PER_CORE} per core": partial(_is_too_many, key)
        for key in ("threads", "loader.num_workers", "trainer.devices")
    },
    "trainer.sync_batchnorm=True needs strategy=ddp strategy.shard=batch on GPUs": (
        lambda of: of("trainer.sync_batchnorm") and _lacks_batches_on_gpus(of)
    ),
    "{strategy.name} {strategy.group_params}: fsdp needs this option and no other strategy has "
    "it; set strategy=fsdp, which sets both": (
        lambda of: (of("strategy.name") == "fsdp") != (of("strategy.group_params") is not None)
    ),
    "{strategy.shard} with strategy=fsdp: only ddp has this option": (
        lambda of: _is_fsdp(of) and of("strategy.shard")
    ),
    "trainer.inference_mode=True with strategy=fsdp: parameters gathered in inference mode cannot "
    "be trained; use false": lambda of: _is_fsdp(of) and of("trainer.inference_mode"),
    "{trainer.accelerator} with strategy=fsdp: must be cpu or gpu": (
        lambda of: _is_fsdp(of) and of("trainer.accelerator") in {"mps", "tpu"}
    ),
}
"""Messages, in which `{key}` stands for the key and its value, and when a config is refused."""


def problems(config: Config) -> Iterator[str]:
    """What a whole config has that cannot be run, in messages."""
    for message, refuses in _RULES.items():
        if refuses(partial(value_of, config)):
            yield re.sub(r"{([\w.]+)}", lambda key: setting(config, key[1]), message)
    yield from _lacking_packages(config)
    if (combination := refused(config)) is not None:
        yield combination
    workers = setting(config, "loader.num_workers")
    if config["loader"]["num_workers"] and (problem := cannot_start(workers, allowed="0")):
        yield problem


def _lacking_packages(config: Config) -> Iterator[str]:
    names = {group: choice(config[group]) for group in ("adapter", "privacy", "secure")}
    settings = [f"logger={name}" for name in config["logger"] or {}]
    settings += [f"{group}={name}" for group, name in names.items() if name != "none"]
    settings += ["privacy.secure=True"] * bool(config["privacy"].get("secure"))
    for start, packages, extra in _NEEDED:
        for needing in settings:
            if needing.startswith(start) and not any(map(find_spec, packages)):
                yield f"{needing}: {packages[0]} is not installed; install flfast[{extra}]"


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
