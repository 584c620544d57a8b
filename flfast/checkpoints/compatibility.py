"""What of a config decides about a run's numbers, and what only about how they come out.

Whatever is not listed here is science: a resumed run has to have it as it was. Torch-free.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

Config = dict[str, Any]

OPERATIONAL = frozenset(
    {
        "callbacks",
        "checkpoint",
        "client_states",
        "data.download",
        "data.root",
        "engine",
        "eval_every",
        "experiment",
        "hydra",
        "loader",
        "logger",
        "micro_batch",
        "optimized_metric",
        "resume",
        "rounds",
        "strategy",
        "threads",
        "trainer.accelerator",
        "trainer.benchmark",
        "trainer.detect_anomaly",
        "trainer.deterministic",
        "trainer.devices",
        "trainer.enable_model_summary",
        "trainer.enable_progress_bar",
        "trainer.num_nodes",
        "trainer.precision",
        "trainer.profiler",
    }
)
"""Keys, and groups of keys, that a resumed run may change."""


def science(config: Config) -> Config:
    """Key -> value of what a resumed run must not change, keys joined by dots.

    Args:
        config: whole, as plain values.
    """
    found = dict(_flat(config, ""))
    for number, phase in enumerate(_scientific(_timeline(config))):
        found[f"schedule.phases.{number}"] = phase
    if config["schedule"]["adapt"]:  # counts evaluations
        found["eval_every"] = config["eval_every"]
    if config["bn"] == "recalibrate":  # in batches of evaluation
        found["loader.eval_batch_size"] = config["loader"]["eval_batch_size"]
    return found


def _timeline(config: Config) -> list[tuple[int, list[str]]]:
    """(first round, its overrides) of every phase, in the order of rounds."""
    overrides: dict[int, list[str]] = {}
    for phase in config["schedule"]["phases"]:
        # Negative rounds count from the end, which moves with `rounds`.
        start = phase["from"] if phase["from"] > 0 else config["rounds"] + 1 + phase["from"]
        overrides[start] = phase["overrides"]
    return sorted(overrides.items())


def _scientific(timeline: list[tuple[int, list[str]]]) -> Iterator[Config]:
    """Phases without what is operational, where they change anything for what is left."""
    before: list[str] = []
    for start, overrides in timeline:
        left = [word for word in overrides if not _is_operational(word)]
        if start > 0 and left != before:
            yield {"from": start, "overrides": left}
            before = left


def _is_operational(override: str) -> bool:
    parts = override.partition("=")[0].strip("+~ ").split(".")
    return any(".".join(parts[:num]) in OPERATIONAL for num in range(1, len(parts) + 1))


def _flat(node: Config, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        key = f"{prefix}{name}"
        if key in OPERATIONAL or key == "schedule.phases":
            continue
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def digest(config: Config) -> str:
    """Hash of a config's science: the same for runs that give the same numbers."""
    text = json.dumps(science(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(before: Config, now: Config) -> list[str]:
    """`key: was -> is` for everything that must not change and did."""
    old, new = science(before), science(now)
    return [
        f"{key}: {_shown(old, key)} -> {_shown(new, key)}"
        for key in dict.fromkeys([*old, *new])
        if key not in old or key not in new or old[key] != new[key]
    ]


def _shown(values: Config, key: str) -> str:
    return json.dumps(values[key], default=str) if key in values else "nothing"


def check_same(before: Config, now: Config, *, done: int) -> None:
    """Refuse to go on with another experiment.

    Args:
        before: config of the run that left the checkpoint.
        now: config of this one.
        done: the checkpoint's round.

    Raises:
        ValueError: with all differences.
    """
    changed = differences(before, now)
    if changed:
        lines = "\n".join(f"  {line}" for line in changed)
        moved = before["rounds"] != now["rounds"]
        hint = f"; what follows rounds={now['rounds']} can be set to what it was" if moved else ""
        raise ValueError(
            f"resume={now['resume']}: the checkpoint is of another experiment{hint}:\n{lines}"
        )
    if now["rounds"] < done:
        raise ValueError(
            f"rounds={now['rounds']}: the checkpoint is of round {done}; allowed: >= {done}"
        )
