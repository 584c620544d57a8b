"""Phases of the schedule: the config that Hydra composes for each range of rounds."""

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from flfast.config.check import check
from flfast.config.errors import ConfigError
from flfast.config.implied import implied
from flfast.state.config_keys import keys_with

log = logging.getLogger(__name__)

AUTO_SIZES = ("batch_size", "micro_batch")
"""Keys whose `auto` is replaced with a number of examples before round 1."""


class Phase(NamedTuple):
    """The config that applies from one round on, until the next phase starts.

    Attributes:
        start: first round, >= 1.
        config: the whole config, not only what the phase overrides.
    """

    start: int
    config: DictConfig


def compose_phases(
    config: DictConfig, compose: Callable[[Sequence[str]], DictConfig]
) -> list[Phase]:
    """The run's phases, sorted by their first round; the first one starts at round 1.

    Each phase is composed from the job's overrides followed by its own. A phase that would start
    outside of the run is skipped. In `config`, of round 1, values of Hydra are filled in.

    Raises:
        ConfigError: if a phase cannot be composed, or overrides a key that phases cannot change.
    """
    phases = {1: config}
    for number, phase in enumerate(config.schedule.phases):
        key = f"schedule.phases[{number}]"
        # Negative rounds count from the end: -1 is the last one.
        first = phase["from"]
        if first == 0 or first in [other["from"] for other in config.schedule.phases[:number]]:
            reason = "rounds begin at 1" if first == 0 else "two phases start there"
            raise ConfigError(
                f"{key}.from={first}: {reason}; allowed: another round, or -1 for the last one"
            )
        start = first if first > 0 else config.rounds + 1 + first
        if not 1 <= start <= config.rounds:
            continue  # the run is too short for this phase
        try:
            composed = compose([*phase.overrides, *implied(phase.overrides)])
            check(composed)
        except (ValueError, TypeError, AssertionError) as error:  # Hydra's internal errors, too
            raise ConfigError(f"{key}: {error}") from None
        changed = _changed_frozen_keys(config, composed)
        if changed:
            raise ConfigError(
                f"{key}.overrides={list(phase.overrides)}: {', '.join(changed)} cannot change "
                f"during a run; allowed: {', '.join(keys_with('phase'))}"
            )
        if start in phases and start > 1:
            log.warning("%s.from=%d replaces an earlier phase of round %d", key, first, start)
        phases[start] = composed
    return [Phase(start, phases[start]) for start in sorted(phases)]


def _changed_frozen_keys(config: DictConfig, other: DictConfig) -> list[str]:
    left, right = (_frozen_values(c) for c in (config, other))
    return [key for key in left if left[key] != right.get(key)]


def _frozen_values(config: DictConfig) -> dict[str, Any]:
    values: Any = OmegaConf.to_container(config, resolve=False)
    for key in keys_with("phase"):
        group, _, name = key.rpartition(".")
        (values[group] if group else values).pop(name, None)
    return values


def replace_auto(phases: list[Phase], sizes: dict[str, int]) -> list[Phase]:
    """The phases with `sizes[key]` wherever the value of `key` is `auto`."""
    if not sizes:
        return phases
    replaced = deepcopy(phases)
    for phase in replaced:
        for key, size in sizes.items():
            if phase.config[key] == "auto":
                phase.config[key] = size
    return replaced
