"""Remembers the result of a sweep's job, so that a resumed sweep does not run it again.

Torch-free.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

RESULT = "result.json"
"""File in a job's folder. It exists once the job has finished."""

GO_ON = "to go on with the sweep, repeat the command with: resume=auto hydra.sweep.dir=%s"
"""What a sweep that is stopped says, for its folder."""


class Result(NamedTuple):
    """What a job returned to Hydra's sweeper.

    Attributes:
        value: `optimized_metric` after the last round; None if it was not measured.
    """

    value: float | None


def finished_result(folder: Path, config: DictConfig) -> Result | None:
    """The result of a job that has finished in this folder with this config, but for `resume`.

    Args:
        folder: of the job.
        config: of the job that is to run.
    """
    try:
        found = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        same = found["config"] == _plain(config)
        return Result(found["value"]) if same else None
    except (OSError, ValueError, KeyError, TypeError):  # no result that can be read: run again
        return None


def write_result(folder: Path, config: DictConfig, value: float | None) -> None:
    """Write the result of a job that has just finished."""
    text = json.dumps({"value": value, "config": _plain(config)}, indent=1)
    part = folder / f"{RESULT}.part"
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(folder / RESULT)


def remove_result(folder: Path) -> None:
    """Forget the result of a job that is about to run again."""
    (folder / RESULT).unlink(missing_ok=True)


def _plain(config: DictConfig) -> Any:
    """The config as JSON has it: keys are text, tuples are lists."""
    values: Any = OmegaConf.to_container(config, resolve=True)
    values.pop("resume", None)
    return json.loads(json.dumps(values, default=str))
