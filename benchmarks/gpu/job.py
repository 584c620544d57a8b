"""A job of `benchmarks.gpu`: one question, a limit of time, and what was found. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

Found = dict[str, Any]
"""What a job has found so far. It is kept if the job fails or is stopped, and lost if it dies."""


@dataclass(frozen=True)
class Setting:
    """What all jobs of a command share.

    Attributes:
        device: `cpu` or `cuda`; the CPU only tries the jobs, with shrunk workloads.
        folder: for files that jobs leave.
    """

    device: str
    folder: Path

    @property
    def cuda(self) -> bool:
        """Whether a GPU is measured."""
        return self.device == "cuda"


@dataclass(frozen=True)
class Job:
    """One question to a GPU.

    Attributes:
        name: in the summary.
        limit_s: seconds after which it is stopped.
        run: answers it: fills the dict, and raises where the answer is bad.
        same: jobs with one such name compute the same, so they must end at the same loss.
        only_cuda: whether it means nothing on a CPU.
    """

    name: str
    limit_s: float
    run: Callable[[Setting, Found], None]
    _: KW_ONLY
    same: str = ""
    only_cuda: bool = False
