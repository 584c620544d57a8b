"""The influence of each key of the config; resume, phases, reports and saved runs read this table.

Torch-free.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Influence = Literal["results", "extent", "speed", "output", "command"]
"""The influence of a key:

- `results`: the numbers of a run. It is fixed once the run has begun.
- `extent`: how long the run lasts, and what is measured.
- `speed`: how the run is computed; numbers are equal up to the rounding of a precision.
- `output`: what is shown and kept.
- `command`: what one command does to the run's folder; it is no setting of the run.
"""

Use = Literal["phase", "saved", "auto"]
"""Where else a key matters:

- `phase`: a phase of a schedule may change it.
- `saved`: it changes how a saved model predicts, or on which examples.
- `auto`: `engine=auto` decides anew if it has changed.
"""


class Key(NamedTuple):
    """The influence and further uses of a key of the config, or of a group of keys."""

    influence: Influence
    uses: tuple[Use, ...] = ()


KEYS: dict[str, Key] = {
    "adapter": Key("results"),
    "aggregation": Key("results"),
    "algorithm": Key("results"),
    "attack": Key("results"),
    "audit": Key("extent"),
    "batch_size": Key("results", ("phase", "saved")),
    "bn": Key("results"),
    "callbacks": Key("output", ("auto",)),
    "checkpoint": Key("output"),
    "client_states": Key("speed"),
    "compression": Key("results"),
    "data": Key("results", ("saved",)),
    "data.download": Key("speed"),
    "data.root": Key("speed"),
    "devices": Key("results"),
    "engine": Key("speed", ("saved", "auto")),
    "eval_every": Key("extent"),
    "eval_examples": Key("extent"),
    "experiment": Key("output"),
    "faults": Key("results"),
    "finetune_epochs": Key("results", ("saved",)),
    "hydra": Key("output"),
    "init_from": Key("results", ("saved",)),
    "last_batch": Key("results", ("phase", "saved")),
    "loader": Key("speed", ("saved", "auto")),
    "local_epochs": Key("results", ("phase",)),
    "local_optimizer_state": Key("results", ("saved",)),
    "local_steps": Key("results", ("phase",)),
    "logger": Key("output"),
    "lr_schedule": Key("results"),
    "micro_batch": Key("speed", ("phase", "saved")),
    "mode": Key("results"),
    "model": Key("results", ("saved",)),
    "optimized_metric": Key("extent"),
    "optimizer": Key("results", ("saved",)),
    "optimizer.lr": Key("results", ("phase",)),
    "overwrite": Key("command"),
    "pace": Key("results"),
    "partition": Key("results", ("saved",)),
    "privacy": Key("results"),
    "recompute": Key("speed", ("auto",)),
    "resume": Key("command"),
    "rounds": Key("extent"),
    "sampler": Key("results", ("saved",)),
    "schedule": Key("results"),
    "secure": Key("results"),
    "seed": Key("results", ("saved",)),
    "selection": Key("results"),
    "shift": Key("results"),
    "split": Key("results", ("saved",)),
    "stop": Key("extent"),
    "strategy": Key("speed", ("phase", "auto")),
    "task": Key("results"),
    "topology": Key("results"),
    "threads": Key("speed", ("saved", "auto")),
    "trainer": Key("results", ("phase", "saved", "auto")),
    "trainer.accelerator": Key("speed"),
    "trainer.benchmark": Key("speed"),
    "trainer.detect_anomaly": Key("speed"),
    "trainer.deterministic": Key("speed"),
    "trainer.devices": Key("speed"),
    "trainer.enable_model_summary": Key("output"),
    "trainer.enable_progress_bar": Key("output"),
    "trainer.fp32_precision": Key("speed"),
    "trainer.num_nodes": Key("speed"),
    "trainer.precision": Key("speed"),
    "trainer.profiler": Key("output"),
    "upload_clip_norm": Key("results"),
    "work": Key("results"),
}


def influence(key: str) -> Influence:
    """Influence of a dotted key, by the longest entry that contains it; `results` if none does.

    >>> influence("trainer.devices"), influence("trainer.gradient_clip_val")
    ('speed', 'results')
    """
    parts = key.split(".")
    for num in range(len(parts), 0, -1):
        found = KEYS.get(".".join(parts[:num]))
        if found is not None:
            return found.influence
    return "results"


def flat(config: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of each setting; a mapping without entries is a value."""
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def keys_with(use: Use) -> Sequence[str]:
    """Keys, and groups of keys, that matter there."""
    return [name for name, key in KEYS.items() if use in key.uses]
