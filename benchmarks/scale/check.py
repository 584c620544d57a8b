"""Compares the formulas with real runs of up to eight ranks on this machine.

Ranks that have no core of their own take turns. So all that P ranks do at the same time takes
P / cores times as long as on a machine for each.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback

from benchmarks.checkouts import ROOT
from benchmarks.scale.model import Constants, Network, all_reduce_s, gather_s
from flfast.distributed.launcher import on_ranks
from flfast.distributed.process_group import enter
from flfast.distributed.world import open_pipes

if TYPE_CHECKING:
    from flfast.federation.loop import Federation

_FUNCTIONS, _REDUCTION = {"assignment": "assign", "reports": "exchange"}, "_reduction"
"""That the engine's module calls, by part of a round; and the engine's method that makes what
combines uploads."""
PARTS = (*_FUNCTIONS, "mean")
HIDDEN = 100
"""Units of both layers of the model."""
PARAMETERS = 32 * HIDDEN + HIDDEN + HIDDEN**2 + HIDDEN + 10 * HIDDEN + 10
_ROUNDS = 8
_WARM_UP = 2
"""Rounds that are not counted: buffers grow, and models are traced."""


class Exchanges(Callback):
    """Notes how long each round's assignment, exchange of reports, and mean take.

    Ranks wait for each other before each of them, so that differences in training do not count.

    Args:
        file: gets a line for each round, from rank 0.
    """

    def __init__(self, *, file: str) -> None:
        super().__init__()
        self._file = Path(file)
        self._row: dict[str, float] = {}

    def on_run_start(self, federation: "Federation") -> None:
        """Put clocks around the engine's functions, and let ranks use gloo as over a network."""
        open_pipes(0, 1, 0)
        engine: Any = federation.engine
        make_reduction = getattr(engine, _REDUCTION)

        def reduction(*args: Any) -> Any:
            made = make_reduction(*args)
            made.combine = self._timed("mean", made.combine)
            return made

        setattr(engine, _REDUCTION, reduction)
        module = import_module("flfast.engines.engine")
        for part, name in _FUNCTIONS.items():
            setattr(module, name, self._timed(part, getattr(module, name)))

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            if dist.is_initialized():
                dist.barrier()
            start = time.perf_counter()
            found = call(*args)
            if dist.is_initialized():
                dist.barrier()  # the slowest rank counts
            self._row[name] = time.perf_counter() - start
            return found

        return timed

    def on_round_end(
        self, federation: "Federation", row: Mapping[str, Any], clients: Mapping[int, Any]
    ) -> None:
        """Write a line."""
        if row["round"] and federation.engine.site.world.rank == 0:
            with self._file.open("a") as file:
                file.write(json.dumps(self._row) + "\n")


class Local(NamedTuple):
    """What a world of two ranks on this machine is like.

    Attributes:
        network: its network.
        barrier_s: of a barrier.
    """

    network: Network
    barrier_s: float


def local() -> Local:
    """Measure a world of two ranks of this machine."""
    return Local(*on_ranks(2, _pings)[0])


def _pings() -> tuple[Network, float]:
    torch.set_num_threads(1)
    enter("gloo", timeout_s=60)
    large = 1 << 20

    def least_s(call: Callable[[], object]) -> float:
        times = []
        for _ in range(200):
            dist.barrier()
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return min(times)

    def exchange_s(num_bytes: int) -> float:
        sent = torch.zeros(num_bytes, dtype=torch.uint8)
        received = torch.empty(2 * num_bytes, dtype=torch.uint8)
        return least_s(lambda: dist.all_gather_into_tensor(received, sent))

    round_trip_s, barrier_s = exchange_s(1 << 10), least_s(dist.barrier)
    network = Network(round_trip_s, large / (exchange_s(large) - round_trip_s))
    dist.destroy_process_group()
    return network, barrier_s


def measured(ranks: int, cohort: int) -> dict[str, float]:
    """Least seconds of each of `PARTS` in a run."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "exchanges")
        command = (
            *(sys.executable, "-m", "flfast.train", "data=synthetic", "partition=iid"),
            *(f"data.num_examples={2 * cohort}", "data.num_test=100", "partition.min_samples=1"),
            *(f"partition.num_clients={cohort}", f"model.hidden=[{HIDDEN},{HIDDEN}]"),
            *(
                "local_epochs=1",
                "batch_size=2",
                "split.test=0",
                "optimized_metric=train/loss",
                f"rounds={_ROUNDS}",
            ),
            *(f"eval_every={_ROUNDS}", "strategy=ddp", f"trainer.devices={ranks}", "threads=1"),
            *("trainer.accelerator=cpu", "callbacks=none", "checkpoint.every=0"),
            f"+callbacks.exchanges={{_target_: benchmarks.scale.check.Exchanges, file: {file}}}",
            f"hydra.run.dir={folder}/run",
        )
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        rows = [json.loads(line) for line in file.read_text().splitlines()][_WARM_UP:]
    return {name: min(row[name] for row in rows) for name in PARTS}


def predicted(
    constants: Constants, here: Local, cores: int, ranks: int, cohort: int
) -> dict[str, float]:
    """Seconds of each of `PARTS` by the formulas."""
    c, turns = constants, max(1.0, ranks / cores)
    message = cohort / ranks * c.report_bytes + c.spec_bytes
    alone = {
        "assignment": cohort * (c.assign_s + math.log2(ranks) * c.assign_level_s),
        "reports": gather_s(ranks, message, here.network)
        + cohort * c.exchange_s
        + ranks * c.spec_s,
        "mean": all_reduce_s(ranks, 8 * PARAMETERS, here.network),
    }
    barrier = here.barrier_s * math.log2(ranks)
    return {name: turns * (value + barrier) for name, value in alone.items()}
