"""Which options and settings go together, by what each says that it needs and breaks.

Options are read from their source, before torch is imported: see `state/capabilities.py`.
"""

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, get_args

from omegaconf import DictConfig

from flfast.config.errors import ConfigError
from flfast.config.own import OWN
from flfast.config.signature import read_signature
from flfast.config.values import Config, choice, setting, value_of
from flfast.state.capabilities import (
    Capabilities,
    Choice,
    breaking,
    capabilities_of_sampler,
    needing,
    refusals,
)

_PLAIN = {
    "algorithm": "fedavg",
    "aggregation": "mean",
    "pace": "sync",
    "sampler": "uniform",
    "topology": "star",
}
"""Options without effect, where this is not `none`."""


def _of_validation(value: object) -> bool:
    return str(value).startswith(("auto", "val/", "personal_val/"))


_STEPS = ("batch_size", "last_batch", "local_epochs", "local_steps", "trainer.accumulate")
_UNEQUAL = breaking("local steps would differ", "equal steps")
_SETTINGS: tuple[tuple[str, Container[Any] | Callable[[Any], bool], Capabilities, str], ...] = (
    ("mode", {"centralized", "local_only"}, breaking("nothing is sent", "messages"), "federated"),
    ("mode", {"local_only"}, breaking("nothing is shared", "shared state"), "federated"),
    ("mode", {"local_only"}, breaking("there is no server", "server model"), "federated"),
    ("mode", {"centralized"}, breaking("there are no clients", "several clients"), "federated"),
    ("finetune_epochs", bool, needing("several clients"), "0"),
    ("bn", {"local", "recalibrate"}, needing("messages"), "aggregate"),
    ("bn", {"recalibrate"}, breaking("clients send statistics", "statistics"), "aggregate"),
    ("local_optimizer_state", {"average"}, needing("shared state", "one call"), "keep or reset"),
    ("upload_clip_norm", bool, breaking("it clips uploads", "one bound"), "null"),
    ("upload_clip_norm", bool, breaking("it measures uploads", "hidden uploads"), "null"),
    ("split.server_examples", {0}, breaking("there are none", "server examples"), "1 or more"),
    ("split.val", {0}, breaking("there are none", "validation examples"), "0.1"),
    ("optimized_metric", _of_validation, needing("validation examples"), "train/loss"),
    ("schedule.adapt.metric", _of_validation, needing("validation examples"), "train/loss"),
    ("checkpoint.keep_best", _of_validation, needing("validation examples"), "null"),
    ("checkpoint.keep_best", bool, needing("checkpoints"), "null"),
    ("checkpoint.every", {0}, breaking("no checkpoint is written", "checkpoints"), "auto"),
    ("overwrite", {True}, breaking("it replaces the run", "earlier run"), "false"),
    ("resume", {"auto"}, needing("earlier run"), "null"),
    ("batch_size", {"auto"}, _UNEQUAL | breaking("it is what fits", "given batches"), "a number"),
    ("batch_size", {-1}, breaking("it takes all examples", "small batches"), "a number"),
    ("micro_batch", bool, needing("given batches"), "null"),
    ("schedule.adapt.action", {"double_batch"}, needing("given batches"), "halve_lr"),
    ("last_batch", {"pad"}, _UNEQUAL, "keep or drop"),
    ("trainer.accumulate_grad_batches", range(2, 2**31), needing("small batches"), "1"),
    ("trainer.accumulate_grad_batches", range(2, 2**31), _UNEQUAL, "1"),
    ("schedule.adapt", bool, _UNEQUAL, "null"),
    ("recompute", bool, breaking("layers compute twice", "kept activations"), "null"),
    ("loader.num_workers", {0}, breaking("there are none", "workers"), "1"),
    ("loader.persistent_workers", {True}, needing("workers"), "false"),
)
"""Of settings that are no options of a group: key, values or what holds for them, what these say,
and what else is allowed."""


def refused(config: Config) -> str | None:
    """The first refused combination of options and settings; a rule, see `rules.py`."""
    return next(refusals(_choices(config)), None)


def check_composed(config: DictConfig, by_group: Mapping[str, Capabilities]) -> None:
    """Refuse objects that do not go together, whatever their options are called.

    `by_group` has their capabilities by group of the config, or by what the data tell, such as
    `task=regression`.

    Raises:
        ConfigError: naming keys, values, the reason and what is allowed.
    """
    values: Any = config  # read where it lies: a logger may name what only a command knows
    choices = list(_choices(values))
    for group, capabilities in by_group.items():
        # What a parameter of the option says is refused with the name of the parameter.
        said = (one.capabilities for one in choices if one.group == group)
        choices.append(_option(group, values.get(group), capabilities.beside(said)))
    for problem in refusals(choices):
        raise ConfigError(problem)


def _choices(config: Config) -> Iterator[Choice]:
    """What the settings and options of a config say about themselves."""
    for key, chosen, says, instead in _SETTINGS:
        value = value_of(config, key)
        if value is not None and (chosen(value) if callable(chosen) else value in chosen):
            yield Choice(key, setting(config, key), says, f"{key}={instead}")
    for number, phase in enumerate(config["schedule"]["phases"]):
        # Hydra adds to or replaces a key with + or ++ in front.
        changed = [str(o) for o in phase["overrides"] if str(o).lstrip("+").startswith(_STEPS)]
        if changed:
            phases = f"schedule.phases[{number}]: {', '.join(changed)}"
            yield Choice("schedule", phases, _UNEQUAL, f"phases without {', '.join(_STEPS[:-1])}")
    for group, node in config.items():
        if isinstance(node, Mapping) and "_target_" in node and OWN not in node:
            yield from said_by_option(group, node)


def said_by_option(group: str, node: Any) -> Iterator[Choice]:
    """What the source of an option says of it, and of its parameters that are set."""
    signature = read_signature(str(node["_target_"]))
    if signature is None:
        return
    says = signature.capabilities
    if group == "sampler":
        says |= capabilities_of_sampler(signature.parameters)
    yield _option(group, node, says)
    for name, parameter in signature.parameters.items():
        for effect in get_args(parameter.annotation):
            if isinstance(effect, Capabilities) and (value := node.get(name)):
                key, off = f"{group}.{name}", {bool: "false", float: "0"}.get(type(value), "null")
                yield Choice(group, f"{key}={value}", effect, f"{key}={off}")


def _option(group: str, node: Any, capabilities: Capabilities) -> Choice:
    if node is None:
        key = group.partition("=")[0]
        return Choice(key, group, capabilities, f"data of another {key}")
    other = f"{group}={_PLAIN.get(group, 'none')}"
    return Choice(group, f"{group}={choice(node)}", capabilities, other)
