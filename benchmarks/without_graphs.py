"""flfast with CUDA graphs refused: `python -m benchmarks.without_graphs key=value ...`.

A program that cannot be recorded runs operator by operator. What it then takes longer is what
recordings gain; what it then computes is what recordings have to compute.
"""

from typing import Any

import torch

from flfast import train


def refuse(*_: Any, **__: Any) -> None:
    """In place of `torch.cuda.graph`.

    Raises:
        RuntimeError: always, as torch does where a capture fails.
    """
    raise RuntimeError("CUDA graphs are switched off")


def main() -> None:
    """Run the command."""
    torch.cuda.graph = refuse  # type: ignore[assignment, misc]
    train.main()


if __name__ == "__main__":
    main()
