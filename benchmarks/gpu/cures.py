"""Changes to a run that a GPU may gain from, each to be measured before it is built.

A job applies them in its own process; see `patching.put`. One that is built goes from here.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu.patching import put


def no_recordings() -> None:
    """Every step is launched operator by operator."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA graphs are switched off")

    put(torch.cuda, "graph", refuse)
