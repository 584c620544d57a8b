"""Runs that are killed and go on, against runs that are not: `python -m benchmarks.kills`.

Every run is the real command in a process of its own. One member of its tree of processes is
killed with SIGKILL at a random moment, or while a checkpoint is written: the process of the
command, or one rank. Without its command a run is started again with `resume=auto`; a rank is
started again by the command. What is left in the end must be the same, bit for bit: server, client
states, and all numbers. No process may be left, none may hang, and none may print a traceback.
"""

import argparse
import faulthandler
import importlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from flfast import train
from flfast.output.results.table import read_rows

ALGORITHMS = ("fedavg", "fedadam", "scaffold", "feddyn", "ditto", "fedrep")
ENGINES = ("eager", "fused")
STRATEGIES = {"single": ("strategy=single",), "ddp": ("strategy=ddp", "trainer.devices=2")}
PACES = {
    "sync": (),
    "buffered": (
        *("pace=buffered", "pace.buffer=3", "sampler.count=6", "sampler.fraction=1.0"),
        *("devices=lognormal", "devices.available=0.7", "work=by_chance"),
    ),
    "async": ("pace=async", "devices=tiers"),
}
TABLES = ("metrics.csv", "clients.csv")
PATIENCE_S = 180
"""A command that takes longer hangs; the whole runs here take seconds."""

_FORK = multiprocessing.get_context("fork")
_CALLBACKS = "flfast.output.callbacks"
_OVERRIDES = (
    *("experiment=quick", "trainer.devices=1", "checkpoint.every=1"),
    "callbacks=none",
    f"+callbacks.weights={{_target_: {_CALLBACKS}.final_weights.FinalWeights, max_personal: 99,"
    " model: mlp}",
    f"+callbacks.table={{_target_: {_CALLBACKS}.clients_table.ClientsTable, every_round: true}}",
)


class Case(NamedTuple):
    """A way to run, and how often to kill it.

    Attributes:
        overrides: of the command, beside those that all cases have.
        rounds: of the run, several a kill.
        kills: how many.
        strategy: key of `STRATEGIES`.
        sweep: whether the command is a sweep.
        model: overrides of the model.
    """

    overrides: tuple[str, ...]
    rounds: int
    kills: int
    strategy: str = "single"
    sweep: bool = False
    model: tuple[str, ...] = ("model.hidden=[32]",)

    def words(self, folder: Path) -> list[str]:
        """Words of the command line."""
        strategy = [*STRATEGIES[self.strategy]]
        strategy += [f"strategy.max_restarts={self.kills}"] if self.strategy == "ddp" else []
        where = ["-m", f"hydra.sweep.dir={folder}"] if self.sweep else [f"hydra.run.dir={folder}"]
        own = *self.model, *self.overrides
        return [*where, *_OVERRIDES, *strategy, f"rounds={self.rounds}", *own]


class Outcome(NamedTuple):
    """What became of a run that was killed again and again.

    Attributes:
        different: files that differ from those of a run that was not killed.
        killed: number of kills by member: `run`, `launcher`, `rank`.
        orphans: processes that were left.
        tracebacks: number of tracebacks that were printed.
    """

    different: list[str]
    killed: Counter[str]
    orphans: int
    tracebacks: int

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.different or self.orphans or self.tracebacks)


def main() -> None:
    """Try all cases, and say which ones differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5, help="of every case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    parser.add_argument("--engines", nargs="+", default=ENGINES)
    parser.add_argument("--strategies", nargs="+", default=tuple(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--client-states", nargs="+", default=("ram", "disk"))
    parser.add_argument("--paces", nargs="+", default=("sync", "buffered"), choices=PACES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for module in ("flfast.setup.launch", "sklearn.datasets"):  # once, for all that is forked
        importlib.import_module(module)
    outcomes = []
    ways = product(
        options.algorithms,
        options.engines,
        options.strategies,
        options.client_states,
        options.paces,
    )
    for algorithm, engine, strategy, states, pace in ways:
        words = (f"algorithm={algorithm}", f"engine={engine}", f"client_states={states}")
        case = Case((*words, *PACES[pace]), 10 * options.kills, options.kills, strategy)
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(tried(case, Path(folder), seed=options.seed))
        name = f"{algorithm} {engine} {strategy} {states} {pace}"
        _say(f"{name:36} {described(outcomes[-1:])}")
    _say(f"all: {described(outcomes)}")
    sys.exit(sum(not outcome.clean for outcome in outcomes))


def described(outcomes: list[Outcome]) -> str:
    """Kills by member, and what was wrong, in a line."""
    killed: Counter[str] = sum((outcome.killed for outcome in outcomes), Counter())
    members = ", ".join(f"{num} of a {name}" for name, num in sorted(killed.items()))
    different = [name for outcome in outcomes for name in outcome.different]
    return (
        f"{killed.total()} kills ({members}): {', '.join(different) or 'nothing'} differs, "
        f"{sum(outcome.orphans for outcome in outcomes)} orphans, "
        f"{sum(outcome.tracebacks for outcome in outcomes)} tracebacks"
    )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def tried(case: Case, folder: Path, *, seed: int) -> Outcome:
    """Kill a run until it has been killed often enough, and compare it with one that is not.

    Args:
        case: what to run.
        folder: for both; empty.
        seed: of members and moments.

    Raises:
        RuntimeError: if a run fails by itself, ends before all kills, or hangs; with what it said,
            and where it hangs.
    """
    whole, killed, said = folder / "whole", folder / "killed", folder / "said"
    _ended(_started(case.words(whole), said), said)
    members: Counter[str] = Counter()
    seen: set[psutil.Process] = set()
    rng = random.Random(f"{seed} {case}")
    command = [*case.words(killed), "resume=auto"]
    process = _started(command, said)
    for _ in range(case.kills):
        if not process.is_alive():
            process = _started(command, said)
        victim, name = _victim(process, case, seen, rng)
        _wait_a_moment(process, killed, rng)
        victim.kill()
        members[name] += 1
        if victim.pid == process.pid:
            process.join()
            if process.exitcode != -signal.SIGKILL:
                raise RuntimeError(f"{case} ended with {process.exitcode} before it was killed")
    if not process.is_alive():
        process = _started(command, said)
    _ended(process, said)
    _, alive = psutil.wait_procs(seen, timeout=20)
    orphans = [other for other in alive if other.status() != psutil.STATUS_ZOMBIE]
    tracebacks = said.read_text(errors="replace").count("Traceback")
    return Outcome([*_different(whole, killed)], members, len(orphans), tracebacks)


def _victim(
    process: Any, case: Case, seen: set[psutil.Process], rng: random.Random
) -> tuple[psutil.Process, str]:
    """A member of the run's tree of processes, once all of them live; adds the ranks to `seen`."""
    command = psutil.Process(process.pid)
    if case.strategy == "single":
        return command, "run"
    ranks: list[psutil.Process] = []
    end = time.monotonic() + PATIENCE_S
    while len(ranks) < 2:  # the next world has to start
        _check_alive(process, end)
        ranks = [child for child in command.children() if child not in seen]
        time.sleep(0.05)
    seen.update(ranks)
    if rng.random() < 0.5:
        return command, "launcher"
    return rng.choice(ranks), "rank"


def _wait_a_moment(process: Any, folder: Path, rng: random.Random) -> None:
    """Wait for up to two rounds more and a part of one, or until a checkpoint is written."""
    end = time.monotonic() + PATIENCE_S
    start, wanted = _num_rows(folder), rng.randint(0, 2)
    begun = time.perf_counter()
    while _num_rows(folder) < start + wanted:
        _check_alive(process, end)
        time.sleep(0.002)
    if rng.random() < 0.3:
        while not _is_writing(folder) and time.monotonic() < end:
            if not process.is_alive() or time.perf_counter() - begun > 10:
                break
        return
    lasted = (time.perf_counter() - begun) / max(wanted, 1)
    time.sleep(rng.uniform(0, min(lasted, 0.1) if wanted else 0.5))


def _num_rows(folder: Path) -> int:
    # Of a run, or of each job of a sweep. Not rglob: parts of checkpoints come and go.
    tables = (table for depth in ("", "*/") for table in folder.glob(f"{depth}{TABLES[0]}"))
    return sum(table.read_text().count("\n") for table in tables)


def _is_writing(folder: Path) -> bool:
    """Whether a checkpoint of the run, or of a job of the sweep, is being written."""
    return any(any(folder.glob(f"{depth}checkpoints/*.part")) for depth in ("", "*/"))


def _check_alive(process: Any, end: float) -> None:
    if not process.is_alive():
        raise RuntimeError(f"a run ended with {process.exitcode} before it was killed")
    if time.monotonic() > end:
        raise RuntimeError(f"a run hangs: process {process.pid}")


def _started(overrides: list[str], said: Path) -> Any:
    # Forked: a new interpreter would import for ten seconds.
    process = _FORK.Process(target=_command, args=(overrides, said))
    process.start()
    return process


def _command(overrides: list[str], said: Path) -> None:
    output = os.open(said, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in (1, 2):
        os.dup2(output, number)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.dump_traceback_later(PATIENCE_S - 10, file=output)
    sys.argv = ["flfast", *overrides]
    train.main()


def _ended(process: Any, said: Path) -> None:
    process.join(PATIENCE_S)
    if process.exitcode != 0:
        how = "hangs" if process.exitcode is None else f"ended with {process.exitcode}"
        process.kill()
        raise RuntimeError(f"a run {how}: {said.read_text(errors='replace')[-4000:]}")


def _different(whole: Path, killed: Path) -> Iterator[str]:
    for path in sorted(whole.rglob("*.pt")):
        name = str(path.relative_to(whole))
        left, right = (torch.load(run / name, weights_only=True) for run in (whole, killed))
        if not _same(_timeless(left), _timeless(right)):
            yield name
    for path in sorted(path for name in TABLES for path in whole.rglob(name)):
        name = str(path.relative_to(whole))
        if _rows(path) != _rows(killed / name):
            yield name


def _timeless(saved: dict[str, Any]) -> dict[str, Any]:
    if "history" not in saved:
        return saved
    return {**saved, "history": [_numbers(row) for row in saved["history"]]}


def _rows(path: Path) -> list[dict[str, Any]]:
    return [_numbers(row) for row in read_rows(path)]


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    slow = ("time/", "train/samples_per_s")
    return {name: value for name, value in row.items() if not name.startswith(slow)}


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return repr(left) == repr(right)  # NaN included


if __name__ == "__main__":
    main()
