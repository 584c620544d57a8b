"""Which options and settings go together, by what each says that it needs and breaks.

Options are read from their source, before torch is imported: see `state/capabilities.py`.
"""

from collections.abc import Container, Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any, get_args

from omegaconf import DictConfig, OmegaConf

from flfast.config.errors import ConfigError
from flfast.config.own import OWN
from flfast.config.rule import Config, choice, shown
from flfast.config.signature import read_signature
from flfast.federation.samplers.cohort import capabilities_of_sampler
from flfast.state.capabilities import Capabilities, Choice, breaking, needing, refusals

_PLAIN = {"algorithm": "fedavg", "aggregation": "mean", "pace": "sync", "sampler": "uniform"}
"""Options without effect, where this is not `none`."""


class _Set:
    """All values that switch something on."""

    def __contains__(self, value: object) -> bool:
        return bool(value)


_STEPS = ("batch_size", "last_batch", "local_epochs", "local_steps", "trainer.accumulate")
_UNEQUAL = breaking("local steps would differ", "equal steps")
_NOTHING_SENT = breaking("nothing is sent", "messages")
_NOTHING_SHARED = breaking("nothing is shared", "shared state", "server model")
_CLIPS = breaking("the server measures and clips uploads", "one bound", "hidden uploads")
_STATISTICS = breaking("clients send statistics of BatchNorm", "protected statistics")
_SETTINGS: tuple[tuple[str, Container[Any], Capabilities, str], ...] = (
    ("mode", {"centralized", "local_only"}, _NOTHING_SENT, "federated"),
    ("mode", {"local_only"}, _NOTHING_SHARED, "federated"),
    ("mode", {"centralized"}, breaking("there are no clients", "several clients"), "federated"),
    ("finetune_epochs", _Set(), needing("several clients"), "0"),
    ("bn", {"local", "recalibrate"}, needing("messages"), "aggregate"),
    ("bn", {"recalibrate"}, _STATISTICS, "aggregate (model.norm=group needs no statistics)"),
    ("local_optimizer_state", {"average"}, needing("shared state"), "keep or reset"),
    ("upload_clip_norm", _Set(), _CLIPS, "null"),
    (
        "split.server_examples",
        {0},
        breaking("the server has none", "server examples"),
        "1 or more",
    ),
    ("batch_size", {"auto"}, _UNEQUAL, "-1 or a number"),
    ("last_batch", {"pad"}, _UNEQUAL, "keep or drop"),
    ("trainer.accumulate_grad_batches", range(2, 2**31), _UNEQUAL, "1, with a larger batch_size"),
    ("schedule.adapt", _Set(), _UNEQUAL, "null"),
)
"""Of settings that are no options of a group: key, values, what these say, and what else is
allowed."""


def refused(config: Config) -> str | None:
    """The first refused combination of options and settings; a rule, see `rules.py`."""
    return next(refusals(_choices(config)), None)


def check_composed(config: DictConfig, found: Mapping[str, Capabilities]) -> None:
    """Refuse objects that do not go together, whatever their options are called.

    Args:
        config: of the run.
        found: capabilities of the objects, by group of the config, or by what the data tell, such
            as `task=regression`.

    Raises:
        ConfigError: naming keys, values, the reason and what is allowed.
    """
    values: Any = OmegaConf.to_container(config, resolve=True)
    choices = list(_choices(values))
    for group, capabilities in found.items():
        # What a parameter of the option says is refused with the name of the parameter.
        said = (one.capabilities for one in choices if one.group == group)
        choices.append(_option(group, values.get(group), capabilities.beside(said)))
    for problem in refusals(choices):
        raise ConfigError(problem)


def _choices(config: Config) -> Iterator[Choice]:
    """What the settings and options of a config say about themselves."""
    for key, chosen, says, instead in _SETTINGS:
        if (value := reduce(getitem, key.split("."), config)) in chosen:
            yield Choice(key, f"{key}={shown(value)}", says, f"{key}={instead}")
    for number, phase in enumerate(config["schedule"]["phases"]):
        # Hydra adds to or replaces a key with + or ++ in front.
        changed = [str(o) for o in phase["overrides"] if str(o).lstrip("+").startswith(_STEPS)]
        if changed:
            setting = f"schedule.phases[{number}]: {', '.join(changed)}"
            yield Choice("schedule", setting, _UNEQUAL, f"phases without {', '.join(_STEPS[:-1])}")
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
