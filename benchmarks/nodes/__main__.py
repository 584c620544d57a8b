"""Nodes that fail, and go on: `python -m benchmarks.nodes [CASE ...] [--keep FOLDER]`.

Two machines train one run under torchrun. In each case a fault hits the run once it has written
some rows. Then it goes on, and its final weights are compared with those of a run that nothing
disturbed. The table says how long nothing happened: the longest time between two rows.
"""

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from benchmarks.nodes.network import Machine, Network
from flfast.output.results.table import read_rows

ROUNDS = 60
_ROWS = 8  # when the fault comes
_PATIENCE_S = 300
_RUN = (
    *("-m", "flfast.train", "experiment=quick", f"rounds={ROUNDS}", "threads=1"),
    *("checkpoint.every=1", "callbacks=none", "engine=eager", "local_epochs=2"),
    "+callbacks.weights={_target_: flfast.output.callbacks.final_weights.FinalWeights,"
    " max_personal: 0, model: mlp}",
)
_OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Run:
    """One run on the machines of a network.

    Args:
        network: of two machines.
        folder: of everything that the case leaves.
        nodes: as of torchrun's `--nnodes`.
        join_timeout_s: how long torchrun waits for nodes that are missing.
        own_store: whether ranks have a store of their own, and not that of torchrun's agents.
    """

    def __init__(
        self,
        network: Network,
        folder: Path,
        *,
        nodes: str = "2",
        join_timeout_s: int = 600,
        own_store: bool = True,
    ) -> None:
        self.machines, self.folder = network.machines, folder
        self.run_dir = folder / "run"
        self._nodes, self._join_timeout_s = nodes, join_timeout_s
        self._store = _OWN_STORE if own_store else {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.longest_s, self._last = 0.0, time.perf_counter()
        self._num_rows = 0

    def start(self, machine: Machine, *more: str) -> None:
        """Start torchrun on a machine."""
        first = self.machines[0].address
        command = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={self._nodes}"),
            *("--nproc-per-node=1", "--max-restarts=5", "--rdzv-backend=c10d", "--rdzv-id=job"),
            *(f"--rdzv-endpoint={first}:29400", f"--local-addr={machine.address}"),
            f"--rdzv-conf=join_timeout={self._join_timeout_s},last_call_timeout=2,"
            f"is_host={int(machine is self.machines[0])}",
            *(*_RUN, f"hydra.run.dir={self.run_dir}", *more),
        ]
        env = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", **self._store}
        place = self.folder / machine.name.rpartition("-")[2]
        self.processes[machine.name] = machine.start(command, place, env)

    def rows(self) -> int:
        """Number of rows that the run has written."""
        try:
            num = len(read_rows(self.run_dir / "metrics.csv"))
        except (OSError, ValueError):
            num = 0
        if num != self._num_rows:
            now = time.perf_counter()
            if min(num, self._num_rows) > 0:
                self.longest_s = max(self.longest_s, now - self._last)
            self._num_rows, self._last = num, now
        return num

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Wait until something has happened.

        Raises:
            TimeoutError: if it does not.
        """
        end = time.perf_counter() + _PATIENCE_S
        while not until():
            self.rows()
            if time.perf_counter() > end:
                raise TimeoutError(f"{what}: not after {_PATIENCE_S} s")
            time.sleep(0.1)

    def wait_for_rows(self, num: int = _ROWS) -> None:
        """Wait until the run has written some rows."""
        self.wait(lambda: self.rows() >= num or self._ended(), f"{num} rows")
        assert self.rows() >= num, f"the run ended before {num} rows"

    def _ended(self) -> bool:
        return all(process.poll() is not None for process in self.processes.values())

    def wait_for_more(self, num: int = 5) -> None:
        """Wait until the run has gone on."""
        before = self.rows()
        self.wait(lambda: self.rows() >= before + num, f"{num} more rows")

    def end(self, *machines: Machine) -> list[int]:
        """Wait until torchrun has ended on these machines; returns its exit codes."""
        processes = [self.processes[machine.name] for machine in machines]
        for process in processes:
            self.wait(lambda p=process: p.poll() is not None, "the end")  # type: ignore[misc]
        return [process.returncode for process in processes]

    def weights(self) -> dict[str, torch.Tensor]:
        """The final weights."""
        found: dict[str, torch.Tensor] = torch.load(self.run_dir / "model.pt")
        return found


def rank_on(machine: Machine) -> psutil.Process | None:
    """The process of the rank on a machine; None if there is none."""
    for pid in machine.pids():
        with suppress(psutil.NoSuchProcess):
            words = psutil.Process(pid).cmdline()
            if "flfast.train" in words and "--nproc-per-node=1" not in words:
                return psutil.Process(pid)
    return None


def kill_worker(machine: Machine) -> None:
    """Kill the rank on a machine; its agent lives."""
    rank = rank_on(machine)
    assert rank is not None
    rank.send_signal(signal.SIGKILL)


def lose(machine: Machine) -> None:
    """Switch a machine off: it says nothing more."""
    machine.connect(connected=False)
    machine.kill()


def both(run: Run) -> None:
    """Start a run, and wait for its first rows."""
    for machine in run.machines:
        run.start(machine)
    run.wait_for_rows()


def undisturbed(network: Network, folder: Path) -> Run:
    """Nothing happens."""
    run = Run(network, folder)
    both(run)
    assert run.end(*network.machines) == [0, 0]
    return run


def _worker_killed(number: int, *, own_store: bool) -> Callable[[Network, Path], Run]:
    def case(network: Network, folder: Path) -> Run:
        run = Run(network, folder, own_store=own_store)
        both(run)
        kill_worker(network.machines[number])
        assert run.end(*network.machines) == [0, 0]
        return run

    return case


def node_returns(network: Network, folder: Path) -> Run:
    """The second machine is switched off, and on again 5 s later."""
    run = Run(network, folder)
    both(run)
    lose(network.machines[1])
    time.sleep(5)
    network.machines[1].connect(connected=True)
    run.start(network.machines[1])
    assert run.end(*network.machines) == [0, 0]
    return run


def node_stays_away(network: Network, folder: Path) -> Run:
    """The second machine is switched off, and one is enough."""
    run = Run(network, folder, nodes="1:2")
    both(run)
    lose(network.machines[1])
    assert run.end(network.machines[0]) == [0]
    return run


def node_is_needed(network: Network, folder: Path) -> Run:
    """The second machine is switched off, and both are needed: torchrun gives up, both start."""
    run = Run(network, folder, join_timeout_s=20)
    both(run)
    lose(network.machines[1])
    assert run.end(network.machines[0]) == [1]
    network.machines[1].connect(connected=True)
    for machine in network.machines:
        run.start(machine)
    assert run.end(*network.machines) == [0, 0]
    return run


def launcher_lost(network: Network, folder: Path) -> Run:
    """The first machine, which has torchrun's store, is switched off; both are started again.

    The other agent of torchrun waits for the store for minutes; a scheduler would end it, too.
    """
    run = Run(network, folder)
    both(run)
    lose(network.machines[0])
    run.wait(lambda: not rank_on(network.machines[1]), "the end of the other rank")
    network.machines[1].kill()
    network.machines[0].connect(connected=True)
    for machine in network.machines:
        run.start(machine)
    assert run.end(*network.machines) == [0, 0]
    return run


def cut(network: Network, folder: Path) -> Run:
    """The cable of the second machine is pulled for 30 s."""
    run = Run(network, folder)
    both(run)
    network.machines[1].connect(connected=False)
    time.sleep(30)
    network.machines[1].connect(connected=True)
    assert run.end(*network.machines) == [0, 0]
    return run


def fewer_and_more(network: Network, folder: Path) -> Run:
    """The second machine is switched off, the first goes on alone, the second joins again."""
    run = Run(network, folder, nodes="1:2")
    both(run)
    lose(network.machines[1])
    run.wait_for_more()
    network.machines[1].connect(connected=True)
    run.start(network.machines[1])
    assert run.end(*network.machines) == [0, 0]
    return run


class Case(NamedTuple):
    """A fault: what happens, and whether the number of ranks stays the same."""

    run: Callable[[Network, Path], Run]
    same_ranks: bool = True


CASES = {
    "undisturbed": Case(undisturbed),
    "rank 0 killed": Case(_worker_killed(0, own_store=True)),
    "rank 1 killed": Case(_worker_killed(1, own_store=True)),
    "rank 0 killed, shared store": Case(_worker_killed(0, own_store=False)),
    "rank 1 killed, shared store": Case(_worker_killed(1, own_store=False)),
    "node returns": Case(node_returns),
    "node stays away": Case(node_stays_away, same_ranks=False),
    "node is needed": Case(node_is_needed),
    "launcher lost": Case(launcher_lost),
    "network cut for 30 s": Case(cut),
    "2, 1, 2 nodes": Case(fewer_and_more, same_ranks=False),
}


def _difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def main() -> int:
    """Run the cases, print the table; 1 if a run does not end, or ends at other weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "cases", nargs="*", help="names of cases, or parts of them; all by default"
    )
    parser.add_argument("--keep", type=Path, help="folder for what the runs leave")
    options = parser.parse_args()
    wanted = [
        name for name in CASES if not options.cases or any(part in name for part in options.cases)
    ]
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        place: Path = options.keep or Path(temporary)
        reference: dict[str, torch.Tensor] = {}
        sys.stdout.write("| case | longest wait | seconds | final weights |\n|---|---|---|---|\n")
        for name in dict.fromkeys(["undisturbed", *wanted]):
            start = time.perf_counter()
            try:
                with Network(2) as network:
                    run = CASES[name].run(network, place / re.sub(r"\W+", "-", name))
                weights = run.weights()
                reference = reference or weights
                off = _difference(weights, reference)
                failed |= off > (0 if CASES[name].same_ranks else 1e-5)
                outcome = "equal" if off == 0 else f"within {off:.0e}"
                waited = f"{run.longest_s:.0f} s"
            except (AssertionError, TimeoutError, OSError) as error:
                failed, outcome, waited = True, f"**{type(error).__name__}: {error}**", "-"
            seconds = time.perf_counter() - start
            sys.stdout.write(f"| {name} | {waited} | {seconds:.0f} | {outcome} |\n")
            sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
