"""Peak memory of runs of transformers by size and engine: `python -m benchmarks.memory`.

Each run is two rounds of two clients in one process, with an evaluation and a checkpoint after
each. What a run of a tiny model takes, mostly libraries, is subtracted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks import processes
from benchmarks.checkouts import HERE

LENGTH, VOCABULARY = 64, 2000


class Size(NamedTuple):
    """Width and layers of a transformer."""

    width: int
    layers: int

    @property
    def num_params(self) -> int:
        """Number of its parameters; the output layer is the embedding."""
        block = 12 * self.width**2 + 13 * self.width
        return self.layers * block + (VOCABULARY + LENGTH + 2) * self.width


SIZES = {"26M": Size(512, 8), "101M": Size(768, 14), "354M": Size(1024, 28)}
TINY = Size(8, 1)

SETTINGS = {
    "momentum": (3, ["optimizer=sgd", "optimizer.momentum=0.9"]),
    "adamw": (4, ["optimizer=adamw"]),
    "scaffold": (5, ["optimizer=sgd", "algorithm=scaffold"]),
    "lora": (1, ["optimizer=adamw", "adapter=lora"]),
}
"""By name: how many times the weights are in memory at least, and overrides. That is weights,
gradients, the optimizer's state, and the states that SCAFFOLD keeps of server and two clients."""


def peak_bytes(size: Size, overrides: Sequence[str]) -> int:
    """The most memory that a run of a transformer holds.

    Raises:
        processes.ContenderError: if it fails.
    """
    options = [
        *(f"model.width={size.width}", f"model.layers={size.layers}", "model.heads=8"),
        *("model=transformer", "data=tokens", f"data.length={LENGTH}", "partition=natural"),
        *(f"data.vocabulary={VOCABULARY}", "batch_size=2", "local_epochs=1", "rounds=2"),
        *("split.val=0", "optimized_metric=train/loss", "checkpoint.every=1", "strategy=single"),
        "callbacks.text_samples.num_tokens=1",
    ]
    folder = str(Path(__file__).parent / "conf")
    command = ["-m", "flfast.train", "--config-dir", folder, *options, *overrides]
    with TemporaryDirectory() as run_dir:
        return processes.run([*command, f"hydra.run.dir={run_dir}/run"], HERE).memory_bytes


def line(name: str, setting: str, engine: str) -> str:
    """A line of the table."""
    (least, overrides), size = SETTINGS[setting], SIZES[name]
    overrides = [*overrides, f"engine={engine}"]
    held = peak_bytes(size, overrides) - peak_bytes(TINY, overrides)
    ratio = held / (4 * size.num_params * least)
    return f"| {name} | {setting} | {engine} | {held / 1e6:,.0f} | {ratio:.2f} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="Peak memory of runs by size and engine.")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["26M", "101M"])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=["momentum", "adamw"])
    parser.add_argument("--engines", nargs="+", default=["fused", "eager"])
    given = parser.parse_args()
    head = "| model | setting | engine | MB | times the least |\n|---|---|---|---|---|\n"
    sys.stdout.write(head)
    for name in given.sizes:
        for setting in given.settings:
            for engine in given.engines:
                sys.stdout.write(f"{line(name, setting, engine)}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
