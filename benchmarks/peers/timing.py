"""What the peers share: their arguments, seconds of each round, and what they print."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.building import read_workload
from benchmarks.workload import Workload


class Rounds:
    """Collects the seconds of each round."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._start = self._trained = time.perf_counter()

    def started(self) -> None:
        """A round begins."""
        self._start = time.perf_counter()

    def trained(self) -> None:
        """The server has the new weights."""
        self._trained = time.perf_counter()

    def evaluated(self) -> None:
        """The new weights are evaluated; the next round begins."""
        now = time.perf_counter()
        row = {"train_s": self._trained - self._start, "eval_s": now - self._trained}
        self.rows.append({**row, "ended_at": time.time(), "gpu_bytes": 0})
        self._start = now


def arguments() -> argparse.Namespace:
    """`workload`, a `Workload`, `rounds` with the warm-up, and `code`, a checkout or None."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", type=Path, help="JSON file of a Workload")
    parser.add_argument("--rounds", type=int, required=True, help="warm-up included")
    parser.add_argument("--code", type=Path, help="checkout of a peer that is no package")
    options = parser.parse_args()
    options.workload = read_workload(options.workload)
    return options


@contextmanager
def silent() -> Iterator[None]:
    """Send all output of a peer to standard error, also that of its child processes."""
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def show(workload: Workload, rounds: Rounds, *, loss: float | None, accuracy: float) -> None:
    """Print one JSON object.

    Args:
        workload: what ran; every peer does all of its local steps.
        rounds: seconds of each round.
        loss: mean over the test examples after the last round; None if it is not measured.
        accuracy: in [0, 1], likewise.
    """
    work = {"steps": workload.steps, "samples": workload.samples}
    json.dump({"rounds": rounds.rows, **work, "loss": loss, "accuracy": accuracy}, sys.stdout)
