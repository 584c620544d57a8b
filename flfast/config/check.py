"""Checks keys, types, ranges and combinations of the config, before torch is imported."""

from collections.abc import Iterable, Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from flfast.config.errors import ConfigError, resolved
from flfast.config.known_words import here_it_is, ours
from flfast.config.own import OWN, passed
from flfast.config.rules import problems as problems_of_rules
from flfast.config.schema import STRICT, OptimizerSettings, Settings, TrainerSettings
from flfast.config.signature import Parameter, Signature, read_signature
from flfast.config.values import Config, shown
from flfast.state.messages import did_you_mean

TRAINER = "lightning.pytorch.trainer.trainer.Trainer"
_HYDRA_KEYS = {"_target_", "_partial_", "_args_", "_recursive_", "_convert_"}
_OFFERED = {
    "algorithm.": {
        *("initial", "batchnorm", "frozen", "common", "members", "seed"),
        *("num_clients", "num_classes", "num_public"),
    },
    "data.": {"task", "seed", "kept"},
    "data.source.": {"task", "seed", "kept"},
}
"""Arguments that algorithms and data sources are offered; the config need not set them."""


def check(config: DictConfig) -> None:
    """Check the whole config.

    Checks run in three steps: the top-level schema, signatures of targets, combinations. Each step
    reports all of its problems at once; the next runs only if there are none.

    Raises:
        ConfigError: one line per problem, with key, value and what is allowed.
    """
    try:
        with resolved():
            missing = sorted(OmegaConf.missing_keys(config))
            if missing:
                raise ConfigError("\n".join(f"{key} is missing; set it" for key in missing))
            values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except RecursionError:
        raise ConfigError(f"{_find_cycle(config)}: the interpolation is circular") from None
    problems = [*_check_schema("", values, Settings)]
    if not problems:
        problems = [
            *_check_targets("", _passed(values)),
            *_check_trainer(values["trainer"]),
        ]
    if not problems:
        problems = [*problems_of_rules(values)]
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))


def _find_cycle(node: Any, prefix: str = "") -> str:
    """`key=value` of the first value whose interpolation refers to itself."""
    names: Iterable[Any] = node if isinstance(node, DictConfig) else range(len(node))
    for name in names:
        try:
            child = node[name]
        except RecursionError:
            unresolved: Any = OmegaConf.to_container(node, resolve=False)
            return f"{prefix}{name}={unresolved[name]}"
        if OmegaConf.is_config(child) and (found := _find_cycle(child, f"{prefix}{name}.")):
            return found
    return ""


def _check_schema(prefix: str, values: Config, schema: type[BaseModel]) -> Iterator[str]:
    try:
        schema.model_validate(values)
    except ValidationError as error:
        yield from _describe(prefix, error, known=schema.model_fields)


def _describe(prefix: str, error: ValidationError, *, known: Iterable[str]) -> Iterator[str]:
    by_key: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        location = [p for p in detail["loc"] if isinstance(p, str) and p.isidentifier()]
        # pydantic appends the type's name for members of a union: trainer.devices.int.
        keys = [p for p in location if p not in {"int", "str", "float", "bool", "constrained"}]
        by_key.setdefault(prefix + ".".join(keys or location), []).append(detail)
    for key, details in by_key.items():
        if details[0]["type"] == "extra_forbidden":
            hint = here_it_is(key) or did_you_mean(key.rpartition(".")[2], known)
            yield f"unknown key {key}={details[0]['input']}{hint}"
        elif details[0]["type"] == "missing":
            yield f"{key} is missing"
        else:
            yield f"{key}={shown(details[0]['input'])}: {_allowed(details)}"


def _allowed(details: Iterable[ErrorDetails]) -> str:
    text = " or ".join(dict.fromkeys(detail["msg"] for detail in details))
    text = text.replace("Input should be", "must be").replace("String should match", "match")
    return text.replace("a valid integer", "an integer").replace("a valid", "a")


def _check_targets(prefix: str, node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _check_targets(f"{prefix}{index}.", item)
    if not isinstance(node, dict) or OWN in node:  # an object has no options to check
        return
    if "_target_" in node:
        yield from _check_target(prefix, node)
    for name, child in node.items():
        yield from _check_targets(f"{prefix}{name}.", child)


def _passed(values: Config) -> Config:
    """The config without what its targets do not receive, such as `sampler.holdout_clients`."""
    sampler = {k: v for k, v in values["sampler"].items() if k != "holdout_clients"}
    return {**values, "sampler": sampler, "data": passed(values["data"])}


def _check_target(prefix: str, node: Config) -> Iterator[str]:
    target = str(node["_target_"])
    try:
        signature = read_signature(target)
    except LookupError as error:
        missing = error.args[0]
        yield f"{prefix}_target_={target}: there is no {missing}; install it or set PYTHONPATH"
        return
    if signature is None:
        return
    yield from _check_arguments(prefix, node, signature)
    if prefix in _OFFERED:
        required = (name for name, param in signature.parameters.items() if param.required)
        for name in required:
            if name not in node and name not in _OFFERED[prefix]:
                yield f"{prefix}{name} is missing; {target} needs it"
    if target.startswith("torch.optim.") and "lr" in signature.parameters and "lr" in node:
        yield from _check_schema(prefix, node, OptimizerSettings)


def _check_arguments(prefix: str, node: Config, signature: Signature) -> Iterator[str]:
    for name, value in node.items():
        if name in _HYDRA_KEYS:
            continue
        parameter = signature.parameters.get(name)
        if parameter is None:
            if not signature.open_ended:
                key, known = f"{prefix}{name}", signature.parameters
                hint = here_it_is(key) or did_you_mean(name, known)
                yield f"unknown key {key}={shown(value)}{hint}"
        elif isinstance(value, dict) and "_target_" in value:
            continue
        elif parameter.annotation is not None:
            yield from _check_type(prefix + name, value, parameter.annotation)


def _check_type(key: str, value: Any, annotation: Any) -> Iterator[str]:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation, config=STRICT)
    except Exception:  # noqa: BLE001 - a type that pydantic does not support
        return
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        yield f"{key}={shown(value)}: {_allowed(error.errors(include_url=False))}"


def _check_trainer(trainer: Config) -> Iterator[str]:
    signature = read_signature(TRAINER)
    known = signature.parameters if signature is not None else {}
    managed = {name: ours(f"trainer.{name}") for name in trainer if name in known}
    for name, key in managed.items():
        if key is not None:
            yield f"trainer.{name}={shown(trainer[name])} is set by flfast; set {key} instead"
    if signature is not None:
        options = {name: value for name, value in trainer.items() if not managed.get(name)}
        beside = {name: Parameter(None, required=False) for name in TrainerSettings.model_fields}
        signature = signature._replace(parameters={**beside, **known})
        yield from _check_arguments("trainer.", options, signature)
