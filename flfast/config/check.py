"""Checks the composed config before torch is imported: types, ranges, keys, combinations."""

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from flfast.config.errors import ConfigError
from flfast.config.schema import Settings
from flfast.config.signature import Signature, read_signature

TRAINER = "lightning.pytorch.trainer.trainer.Trainer"
_HYDRA_KEYS = {"_target_", "_partial_", "_args_", "_recursive_", "_convert_"}
_OURS = {
    "max_epochs": "local_epochs",
    "min_epochs": "local_epochs",
    "max_steps": "local_steps",
    "min_steps": "local_steps",
    "strategy": "strategy",
    "logger": "logger",
    "callbacks": "callbacks",
    "default_root_dir": "hydra.run.dir",
    "enable_checkpointing": "callbacks",
    "num_sanity_val_steps": "trainer.limit_val_batches",
}

Config = dict[str, Any]
Rule = Callable[[Config], str | None]


def check(config: DictConfig) -> None:
    """Check every option.

    Raises:
        ConfigError: one line per problem: key, value, what is allowed.
    """
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ConfigError("\n".join(f"{key} is missing; set it" for key in missing))
    try:
        values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from None
    problems = [*_schema(values)]
    if not problems:
        problems = [*_targets("", values), *_trainer_names(values["trainer"])]
    if not problems:
        problems = [problem for rule in RULES if (problem := rule(values))]
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def _schema(values: Config) -> Iterator[str]:
    try:
        Settings.model_validate(values)
    except ValidationError as error:
        yield from _described("", error, known=Settings.model_fields)


def _described(prefix: str, error: ValidationError, *, known: Iterable[str]) -> Iterator[str]:
    by_key: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        location = [
            part for part in detail["loc"] if isinstance(part, str) and part.isidentifier()
        ]
        # Members of a union name their type, too: trainer.devices.int.
        named = [
            part for part in location if part not in {"int", "str", "float", "bool", "constrained"}
        ]
        by_key.setdefault(prefix + ".".join(named or location), []).append(detail)
    for key, details in by_key.items():
        if details[0]["type"] == "extra_forbidden":
            yield f"unknown key {key}={details[0]['input']}{_suggest(key, known)}"
        elif details[0]["type"] == "missing":
            yield f"{key} is missing"
        else:
            allowed = " or ".join(dict.fromkeys(_allowed(detail) for detail in details))
            yield f"{key}={_shown(details[0]['input'])}: {allowed}"


def _allowed(detail: ErrorDetails) -> str:
    message = detail["msg"].replace("Input should be", "must be")
    return message.replace("a valid integer", "an integer").replace("a valid", "a")


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


def _suggest(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key.rpartition(".")[2], list(known), n=1)
    return f"; did you mean {close[0]}?" if close else f"; allowed: {', '.join(known)}"


def _targets(prefix: str, node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _targets(f"{prefix}{index}.", item)
    if not isinstance(node, dict):
        return
    if "_target_" in node:
        yield from _target(prefix, node)
    for name, child in node.items():
        yield from _targets(f"{prefix}{name}.", child)


def _target(prefix: str, node: Config) -> Iterator[str]:
    target = str(node["_target_"])
    try:
        signature = read_signature(target)
    except LookupError as error:
        missing = error.args[0]
        yield f"{prefix}_target_={target}: there is no {missing}; install it or set PYTHONPATH"
        return
    if signature is not None:
        yield from _call(prefix, node, signature)


def _call(prefix: str, node: Config, signature: Signature) -> Iterator[str]:
    for name, value in node.items():
        if name in _HYDRA_KEYS:
            continue
        parameter = signature.parameters.get(name)
        if parameter is None:
            if not signature.open_ended:
                known = signature.parameters
                yield f"unknown key {prefix}{name}={_shown(value)}{_suggest(name, known)}"
        elif parameter.annotation is not None and not isinstance(value, dict):
            yield from _typed(prefix + name, value, parameter.annotation)


def _typed(key: str, value: Any, annotation: Any) -> Iterator[str]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=ConfigDict(strict=True))
    except Exception:  # noqa: BLE001 - a type pydantic has no idea of
        return
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        details = error.errors(include_url=False)
        allowed = " or ".join(dict.fromkeys(_allowed(detail) for detail in details))
        yield f"{key}={_shown(value)}: {allowed}"


def _trainer_names(trainer: Config) -> Iterator[str]:
    for name, ours in _OURS.items():
        if name in trainer:
            yield f"trainer.{name}={_shown(trainer[name])} is flfast's own; set {ours} instead"
    signature = read_signature(TRAINER)
    if signature is not None:
        yield from _call(
            "trainer.", {k: v for k, v in trainer.items() if k not in _OURS}, signature
        )


def _passes(config: Config) -> str | None:
    epochs, steps = config["local_epochs"], config["local_steps"]
    if (epochs is None) == (steps is None):
        return (
            f"local_epochs={_shown(epochs)} local_steps={_shown(steps)}: exactly one must be set; "
            f"the other must be null"
        )
    return None


def _batch_size(config: Config) -> str | None:
    if config["batch_size"] == 0:
        return "batch_size=0: must be >= 1, or -1 for all of a client's examples"
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
            f"micro_batch={config['micro_batch']} with batch_size=auto: a batch that is cut fits "
            f"at any size; use batch_size=-1 or a number, or micro_batch=null"
        )
    adapt = config["schedule"]["adapt"]
    if adapt and adapt["action"] == "double_batch":
        return (
            "schedule.adapt.action=double_batch with batch_size=auto: the batch is already the "
            "largest that fits; use schedule.adapt.action=halve_lr, or a number"
        )
    return None


def _shares(config: Config) -> str | None:
    val, test = config["split"]["val"], config["split"]["test"]
    if val + test >= 1:
        return f"split.val={val} split.test={test}: together they must be < 1"
    return None


def _workers(config: Config) -> str | None:
    loader = config["loader"]
    if loader["persistent_workers"] and not loader["num_workers"]:
        return "loader.persistent_workers=True needs loader.num_workers >= 1, got 0"
    return None


def _optimized(config: Config) -> str | None:
    metric = config["optimized_metric"]
    if metric.startswith("val/") and config["split"]["val"] == 0:
        return f"optimized_metric={metric} needs validation data; set split.val > 0"
    adapt = config["schedule"]["adapt"]
    if adapt and adapt["metric"].startswith("val/") and config["split"]["val"] == 0:
        return f"schedule.adapt.metric={adapt['metric']} needs validation data; set split.val > 0"
    return None


def _baselines(config: Config) -> str | None:
    mode = config["mode"]
    if mode != "federated" and config["bn"] in {"local", "recalibrate"}:
        return f"bn={config['bn']} with mode={mode}: nothing is shared there; use bn=aggregate"
    if mode == "local_only" and config["local_optimizer_state"] == "average":
        return "local_optimizer_state=average with mode=local_only: use keep or reset"
    return None


def _init_from(config: Config) -> str | None:
    path = config["init_from"]
    if path is not None and not Path(path).is_file():
        return f"init_from={path}: there is no such file"
    return None


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


def _sync_batchnorm(config: Config) -> str | None:
    if not config["trainer"].get("sync_batchnorm"):
        return None
    strategy = config["strategy"]
    together = strategy["name"] in {"auto", "ddp"} and strategy.get("shard") == "batch"
    if not together or config["trainer"]["accelerator"] == "cpu" or not _may_have_gpu():
        return "trainer.sync_batchnorm=True needs strategy=ddp strategy.shard=batch on GPUs"
    return None


def _sharded(config: Config) -> str | None:
    strategy, trainer = config["strategy"], config["trainer"]
    grouped = strategy.get("group_params") is not None
    if (strategy["name"] == "fsdp") != grouped:
        return (
            f"strategy.name={strategy['name']} strategy.group_params="
            f"{_shown(strategy.get('group_params'))}: fsdp needs it, no other has it; choose the "
            f"group, strategy=fsdp"
        )
    if not grouped:
        return None
    if "shard" in strategy:
        return f"strategy.shard={strategy['shard']} with strategy=fsdp: only ddp has it"
    if trainer.get("inference_mode"):
        return (
            "trainer.inference_mode=True with strategy=fsdp: what it gathers could not be trained"
        )
    if trainer["accelerator"] in {"mps", "tpu"}:
        return (
            f"trainer.accelerator={trainer['accelerator']} with strategy=fsdp: must be cpu or gpu"
        )
    return None


def _may_have_gpu() -> bool:
    """Whether torch could find one; only what is certain without torch is a no."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in {"", "-1"}:
        return False
    nodes = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/proc/driver/nvidia/version")
    return sys.platform != "linux" or any(Path(node).exists() for node in nodes)


RULES: tuple[Rule, ...] = (
    _batch_size,
    _passes,
    _full_batch,
    _auto_batch,
    _shares,
    _workers,
    _optimized,
    _baselines,
    _init_from,
    _devices,
    _sync_batchnorm,
    _sharded,
)
