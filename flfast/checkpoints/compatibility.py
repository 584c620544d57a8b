"""The settings that a resumed run may change: those that do not affect its results. Torch-free.

`state/config_keys.py` says which. All others are fixed: a new option is refused until somebody
decides that it does not affect the results.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from flfast.state.config_keys import flat, influence

Config = dict[str, Any]


def fixed_settings(config: Config) -> Config:
    """Settings that a resumed run must not change, by dotted key; the config is plain values."""
    settings = {key: value for key, value in flat(config) if influence(key) == "results"}
    del settings["schedule.phases"]
    for number, phase in enumerate(_fixed_phases(_sorted_phases(config))):
        settings[f"schedule.phases.{number}"] = phase
    if config["schedule"]["adapt"]:  # its patience counts evaluations
        settings |= {key: config[key] for key in ("eval_every", "eval_examples")}
    privacy = config["privacy"]
    if privacy.get("epsilon") is not None or privacy.get("mechanism") == "banded":
        settings["rounds"] = config["rounds"]  # earlier rounds had noise for so many
    if config["bn"] == "recalibrate":  # measures statistics in batches of this size
        settings["loader.eval_batch_size"] = config["loader"]["eval_batch_size"]
    return settings


def _sorted_phases(config: Config) -> list[tuple[int, list[str]]]:
    """(first round, overrides) of every phase, sorted by round."""
    overrides: dict[int, list[str]] = {}
    for phase in config["schedule"]["phases"]:
        # Negative rounds count from the end, which moves with `rounds`.
        start = phase["from"] if phase["from"] > 0 else config["rounds"] + 1 + phase["from"]
        overrides[start] = phase["overrides"]
    return sorted(overrides.items())


def _fixed_phases(phases: list[tuple[int, list[str]]]) -> Iterator[Config]:
    """Phases without operational overrides; a phase equal to the previous one is skipped."""
    previous: list[str] = []
    for start, overrides in phases:
        fixed = [o for o in overrides if influence(o.partition("=")[0].strip("+~ ")) == "results"]
        if start > 0 and fixed != previous:
            yield {"from": start, "overrides": fixed}
            previous = fixed


def digest(config: Config) -> str:
    """Hash of the fixed settings: runs with equal hashes give equal results."""
    text = json.dumps(fixed_settings(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(before: Config, now: Config) -> list[str]:
    """`key: old -> new` for every fixed setting that has changed."""
    old, new = fixed_settings(before), fixed_settings(now)
    return [
        f"{key}: {_shown(old, key)} -> {_shown(new, key)}"
        for key in dict.fromkeys([*old, *new])
        if key not in old or key not in new or old[key] != new[key]
    ]


def _shown(values: Config, key: str) -> str:
    return json.dumps(values[key], default=str) if key in values else "not set"


def check_same_experiment(before: Config, now: Config, *, done: int) -> None:
    """Refuse to resume another experiment, or one of which more rounds than `rounds` are done.

    Raises:
        ValueError: if fixed settings differ, with all differences; also if `rounds` < `done`.
    """
    changed = differences(before, now)
    if changed:
        lines = "\n".join(f"  {line}" for line in changed)
        if any(line.startswith("model._own_: ") for line in changed):  # of `flfast.run`
            lines += "\n  the weights of a module count, too; those of a function come from seed"
        hint = ""
        if any(line.startswith("rounds: ") for line in changed):
            lines += "\n  the noise of privacy is for all rounds of the run"
        elif before["rounds"] != now["rounds"]:
            hint = f"; set options that depend on rounds={now['rounds']} to their previous values"
        raise ValueError(f"resume={now['resume']}: that run is another experiment{hint}:\n{lines}")
    if now["rounds"] < done:
        raise ValueError(
            f"rounds={now['rounds']}: the checkpoint is of round {done}; allowed: >= {done}"
        )
