"""Compares paces in virtual time: synchronous rounds, FedBuff and FedAsync.

    python -m benchmarks.asynchrony digits OUT_FOLDER
    python -m benchmarks.asynchrony pfllib_mnist OUT_FOLDER data.root=FOLDER

Each pace is a sweep of `python -m flfast.train` over three seeds. All paces have the same clients,
devices, learning rate and number of clients at work. Further words are added to every command.

OUT_FOLDER holds a folder of runs for each dataset and pace, the tables `asynchrony.md`, and the
picture `asynchrony.png` with a panel for each dataset that was run.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from flfast.output.callbacks.figures import COLOURS, figure
from flfast.output.results.history import Row, number
from flfast.output.results.table import read_rounds, read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEEDS = (0, 1, 2)
_TABLE = "{_target_: flfast.output.callbacks.clients_table.ClientsTable, every_round: true}"
_COMMON = (
    *("devices=tiers", "trainer.devices=1", "callbacks=none", f"+callbacks.table={_TABLE}"),
    "checkpoint.every=0",
)


class Dataset(NamedTuple):
    """What the paces are compared on.

    Attributes:
        words: of the command line, the same for all paces.
        column: of `metrics.csv`, the accuracy.
        goal: accuracy to reach.
        paces: words of the command line by the pace's name. Their rounds take about the same
            virtual time.
    """

    words: tuple[str, ...]
    column: str
    goal: float
    paces: Mapping[str, tuple[str, ...]]


DATASETS = {
    "digits": Dataset(
        ("data=digits", "partition.num_clients=50", "local_epochs=1", "sampler.count=13"),
        "global/accuracy",
        0.9,
        {
            "sync": ("rounds=44",),
            "deadline": ("pace.deadline=6", "rounds=105"),
            "over-selection": ("pace.keep_first=10", "rounds=82"),
            "FedBuff": ("pace=buffered", "pace.buffer=10", "rounds=165"),
            "FedAsync": ("pace=async", "rounds=1650", "eval_every=10"),
        },
    ),
    "pfllib_mnist": Dataset(
        ("experiment=pfllib_mnist", "model=mlp", "engine=fused", "sampler.count=8"),
        "local/accuracy",
        0.7,
        {
            "sync": ("rounds=20",),
            "deadline": ("pace.deadline=170", "rounds=62"),
            "over-selection": ("pace.keep_first=6", "rounds=75"),
            "FedBuff": ("pace=buffered", "pace.buffer=6", "rounds=145", "eval_every=2"),
            "FedAsync": ("pace=async", "rounds=870", "eval_every=10"),
        },
    ),
}


class Run(NamedTuple):
    """What a run has measured.

    Attributes:
        history: rows of `metrics.csv`.
        clients: rows of `clients.csv`.
        slow: ids of the clients of the slowest tier.
    """

    history: Sequence[Row]
    clients: Sequence[Row]
    slow: frozenset[int]


class Reached(NamedTuple):
    """When a run first measures an accuracy; NaN if it never does.

    Attributes:
        seconds: of virtual time.
        updates: uploads that were aggregated until then.
        megabytes: up and down until then.
    """

    seconds: float = math.nan
    updates: float = math.nan
    megabytes: float = math.nan


def main() -> None:
    """Run a dataset's paces; then write tables and picture of all datasets in the folder."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.asynchrony",
        description="Compare synchronous rounds, FedBuff and FedAsync in virtual time.",
    )
    parser.add_argument("dataset", choices=DATASETS)
    parser.add_argument("folder", type=Path, help="folder of the results")
    parser.add_argument("words", nargs="*", help="added to every command")
    options = parser.parse_args()
    run_all(options.dataset, options.folder, options.words)
    found = {name: read(options.folder / name) for name in DATASETS}
    found = {name: paces for name, paces in found.items() if paces}
    text = "\n\n".join(f"{name}:\n\n{table(name, paces)}" for name, paces in found.items())
    (options.folder / "asynchrony.md").write_text(f"{text}\n", encoding="utf-8")
    draw(found, options.folder / "asynchrony.png")
    print(text)  # noqa: T201 - its output


def run_all(name: str, folder: Path, words: Sequence[str]) -> None:
    """Run a sweep over seeds for each pace; what the runs print goes to a file.

    Raises:
        SystemExit: with the last lines of that file, if a run fails.
    """
    dataset = DATASETS[name]
    for pace, own in dataset.paces.items():
        place = folder / name / pace
        place.mkdir(parents=True, exist_ok=True)
        seeds = f"seed={','.join(map(str, SEEDS))}"
        command = [sys.executable, "-m", "flfast.train", "-m", seeds, f"hydra.sweep.dir={place}"]
        command += [*_COMMON, *dataset.words, *own, *words]
        output = place / "output.txt"
        with output.open("w", encoding="utf-8") as file:
            ended = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
        if ended.returncode:
            sys.exit("\n".join(output.read_text(encoding="utf-8").splitlines()[-5:]))


def read(folder: Path) -> dict[str, list[Run]]:
    """By pace: its runs in a dataset's folder. Paces that were not run are left out."""
    names = dict.fromkeys(pace for dataset in DATASETS.values() for pace in dataset.paces)
    paces = {name: sorted((folder / name).glob("*/metrics.csv")) for name in names}
    return {
        name: [_read_run(path.parent) for path in paths] for name, paths in paces.items() if paths
    }


def _read_run(folder: Path) -> Run:
    config = OmegaConf.load(folder / ".hydra" / "config.yaml")
    assert isinstance(config, DictConfig)
    clients = read_rows(folder / "clients.csv")
    ids = np.unique([int(row["client_id"]) for row in clients])
    devices = instantiate(config.devices)(ids, seed=config.seed)
    slow = ids[devices.per_example == devices.per_example.max()]
    history = read_rounds(folder / "metrics.csv", sys.maxsize)
    return Run(history, clients, frozenset(slow.tolist()))


def curve(run: Run, column: str) -> tuple[list[float], list[float]]:
    """Virtual seconds of the evaluations, and the accuracy there."""
    measured = [row for row in run.history if math.isfinite(number(row, column))]
    return [_seconds(row) for row in measured], [number(row, column) for row in measured]


def reached(run: Run, column: str, goal: float) -> Reached:
    """When the column first is at least `goal`."""
    at = next((int(row["round"]) for row in run.history if number(row, column) >= goal), None)
    if at is None:
        return Reached()
    rows = [row for row in run.history if 0 < int(row["round"]) <= at]
    updates = sum(number(row, "cohort/clients") - number(row, "cohort/rejected") for row in rows)
    ways = ("comm/up_bytes", "comm/down_bytes")
    megabytes = sum(number(row, way) for row in rows for way in ways) / 1e6
    return Reached(_seconds(rows[-1]) if rows else 0.0, updates, megabytes)


def last_rounds(run: Run, column: str, end: float) -> list[int]:
    """The rounds evaluated in the last fifth of the time up to `end`; at least one.

    A single evaluation is noise where every step moves the model a lot.
    """
    measured = [
        row for row in run.history if math.isfinite(number(row, column)) and _seconds(row) <= end
    ]
    late = [row for row in measured if _seconds(row) >= 0.8 * end]
    return [int(row["round"]) for row in late or measured[-1:]]


def slow_updates(run: Run, last: int) -> float:
    """Share of the aggregated uploads up to a round that come from the slowest tier."""
    senders = [
        int(row["client_id"])
        for row in run.clients
        if row["status"] == "trained" and int(row["round"]) <= last
    ]
    return sum(client in run.slow for client in senders) / len(senders) if senders else math.nan


def slow_accuracy(run: Run, rounds: Sequence[int]) -> float:
    """Accuracy of the server's model in rounds, mean over the slowest tier's own test sets."""
    found = [
        number(row, "local/accuracy")
        for row in run.clients
        if int(row["round"]) in rounds and int(row["client_id"]) in run.slow
    ]
    finite = [value for value in found if math.isfinite(value)]
    return statistics.fmean(finite) if finite else math.nan


def end_of(paces: Mapping[str, Sequence[Run]]) -> float:
    """Virtual seconds that all runs have measured."""
    return min(_seconds(run.history[-1]) for runs in paces.values() for run in runs)


def table(name: str, paces: Mapping[str, Sequence[Run]]) -> str:
    """A row for each pace, in Markdown: mean over seeds, and least and largest.

    Accuracies are means over the last fifth of the time.
    """
    dataset, end = DATASETS[name], end_of(paces)
    goal = f"{100 * dataset.goal:.0f} %"
    head = [
        *("pace", f"seconds to {goal}", f"updates to {goal}", f"MB to {goal}"),
        *(f"accuracy at {0.8 * end:,.0f} to {end:,.0f} s, %", "updates from slow clients, %"),
        "accuracy on slow clients, %",
    ]
    lines = [head, ["---"] * len(head)]
    lines += [[pace, *_cells(dataset, runs, end)] for pace, runs in paces.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(dataset: Dataset, runs: Sequence[Run], end: float) -> list[str]:
    to_goal = [reached(run, dataset.column, dataset.goal) for run in runs]
    last = [(run, last_rounds(run, dataset.column, end)) for run in runs]
    accuracy = [
        statistics.fmean(number(run.history[at], dataset.column) for at in rounds)
        for run, rounds in last
    ]
    return [
        *(spread(values) for values in zip(*to_goal, strict=True)),
        percent(accuracy),
        percent([slow_updates(run, rounds[-1]) for run, rounds in last]),
        percent([slow_accuracy(run, rounds) for run, rounds in last]),
    ]


def spread(values: Sequence[float], say: Callable[[float], str] = "{:,.0f}".format) -> str:
    """Mean, and least and largest; NaN is a run that never gets there.

    >>> spread([10, 11, 15]), spread([math.nan, 3])
    ('12 (10 to 15)', 'never in 1 of 2')
    """
    missing = sum(map(math.isnan, values))
    if missing:
        return "never" if missing == len(values) else f"never in {missing} of {len(values)}"
    return f"{say(statistics.fmean(values))} ({say(min(values))} to {say(max(values))})"


def percent(values: Sequence[float]) -> str:
    """The same of shares; NaN is a run that has no such number, and is left out.

    >>> percent([0.5, 0.75, math.nan]), percent([math.nan])
    ('62.5 (50.0 to 75.0)', '')
    """
    finite = [100 * value for value in values if math.isfinite(value)]
    return spread(finite, "{:.1f}".format) if finite else ""


def draw(found: Mapping[str, Mapping[str, Sequence[Run]]], path: Path) -> None:
    """Accuracy over virtual time: the mean over seeds, and least and largest as a band."""
    title = "Accuracy over virtual time; a quarter of the clients is 10 times as slow"
    with figure(path, size=(6.2 * len(found), 4.6), dpi=120, title=title) as drawn:
        panels = drawn.subplots(1, len(found), squeeze=False)[0]
        for axes, (name, paces) in zip(panels, found.items(), strict=True):
            _panel(axes, name, paces)
        panels[0].legend(loc="lower right")


def _panel(axes: Axes, name: str, paces: Mapping[str, Sequence[Run]]) -> None:
    from matplotlib.ticker import PercentFormatter

    dataset = DATASETS[name]
    times = np.linspace(0, end_of(paces), 400)
    for colour, (pace, runs) in zip(COLOURS.values(), paces.items(), strict=False):
        lines = np.array([np.interp(times, *curve(run, dataset.column)) for run in runs])
        axes.plot(times, lines.mean(axis=0), color=colour, label=pace)
        band = (lines.min(axis=0), lines.max(axis=0))
        axes.fill_between(times, *band, color=colour, alpha=0.15, linewidth=0)
    axes.axhline(dataset.goal, color="#888888", linestyle=":", linewidth=1)
    axes.set_title(f"{name}, {dataset.column}")
    axes.set_xlabel("virtual seconds")
    axes.grid(visible=True)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None, symbol=" %"))


def _seconds(row: Row) -> float:
    """Virtual seconds; the row before training has none."""
    return 0.0 if int(row["round"]) == 0 else number(row, "clock/seconds")


if __name__ == "__main__":
    main()
