"""Phases: the config composed anew by Hydra for the rounds from which something changes."""

from typing import Any, NamedTuple

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from flfast.config.check import check
from flfast.config.errors import ConfigError

CHANGEABLE = (
    "batch_size",
    "last_batch",
    "local_epochs",
    "local_steps",
    "micro_batch",
    "optimizer.lr",
    "strategy",
    "trainer",
)


class Phase(NamedTuple):
    """What holds from a round on.

    Attributes:
        start: first round, >= 1.
        config: the whole config.
    """

    start: int
    config: DictConfig


def compose_phases(config: DictConfig) -> list[Phase]:
    """The run's phases by their first round; the first one starts at round 1.

    Each is composed from the command line's own overrides and the phase's.

    Raises:
        ConfigError: if a phase cannot be composed, starts outside of the run, or changes what
            cannot change.
    """
    phases = {1: config}
    for number, phase in enumerate(config.schedule.phases):
        key = f"schedule.phases[{number}]"
        # Negative rounds count from the end: -1 is the last one.
        start = phase["from"] if phase["from"] > 0 else config.rounds + 1 + phase["from"]
        if not 1 <= start <= config.rounds:
            continue  # a shorter run ends before
        try:
            composed = compose("config", [*HydraConfig.get().overrides.task, *phase.overrides])
            check(composed)
        except (ValueError, TypeError, AssertionError) as error:  # of ours, and of Hydra's inside
            raise ConfigError(f"{key}: {error}") from None
        changed = _frozen(config, composed)
        if changed:
            raise ConfigError(
                f"{key}.overrides={list(phase.overrides)}: {', '.join(changed)} cannot change "
                f"during a run; allowed: {', '.join(CHANGEABLE)}"
            )
        phases[start] = composed
    return [Phase(start, phases[start]) for start in sorted(phases)]


def _frozen(config: DictConfig, other: DictConfig) -> list[str]:
    left, right = (_values(c) for c in (config, other))
    return [key for key in left if left[key] != right.get(key)]


def _values(config: DictConfig) -> dict[str, Any]:
    values: Any = OmegaConf.to_container(config, resolve=False)
    values["optimizer"].pop("lr")
    return {key: value for key, value in values.items() if key not in CHANGEABLE}
