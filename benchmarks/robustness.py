"""The matrix of a sweep over attacks and defences: tables in Markdown, and a picture.

    python -m flfast.train -m aggregation=mean,median,... attack=none,sign_flip,... [MORE]
    python -m benchmarks.robustness SWEEP_FOLDER [PICTURE.png]

Values are of the last evaluated round, in percent, and their mean over seeds. The first table and
panel have the accuracy on the central test set, the second `attack/success` of backdoors.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flfast.output.callbacks.figures import figure
from flfast.output.results.history import last_value
from flfast.output.results.runs import RunRecord, read_jobs
from flfast.output.results.statistics import mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = {
    "global/accuracy": ("accuracy, %", "RdYlGn"),
    "attack/success": ("backdoor, %", "RdYlGn_r"),
}
"""Column -> title and colours."""


class Matrix(NamedTuple):
    """A column of `metrics.csv` by attack and defence.

    Attributes:
        defences: names of the rows.
        attacks: names of the columns.
        values: percent, by row and column; NaN where it was not measured.
    """

    defences: list[str]
    attacks: list[str]
    values: list[list[float]]


def matrix(jobs: Sequence[RunRecord], column: str) -> Matrix:
    """The last values of a column; attacks without any value are left out."""
    found: dict[tuple[str, str], list[float]] = {}
    for job in jobs:
        pair = job.choices["aggregation"], job.choices["attack"]
        found.setdefault(pair, []).append(100 * last_value(job.history, column))
    mean = {pair: mean_interval(values).mean for pair, values in found.items()}
    defences, attacks = (list(dict.fromkeys(names)) for names in zip(*found, strict=True))
    measured = {attack for (_, attack), value in mean.items() if not math.isnan(value)}
    kept = [attack for attack in attacks if attack in measured]
    values = [[mean.get((defence, attack), math.nan) for attack in kept] for defence in defences]
    return Matrix(defences, kept, values)


def table(found: Matrix) -> str:
    """The matrix as a table in Markdown."""
    lines = [["`aggregation`", *(f"`{attack}`" for attack in found.attacks)]]
    lines.append(["---"] * len(lines[0]))
    for defence, row in zip(found.defences, found.values, strict=True):
        lines.append([f"`{defence}`", *("" if math.isnan(x) else f"{x:.1f}" for x in row)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(matrices: dict[str, Matrix], path: Path) -> None:
    """A panel for each matrix, with a coloured cell for each pair."""
    widths = [len(found.attacks) for found in matrices.values()]
    height = 1.6 + 0.36 * len(next(iter(matrices.values())).defences)
    with figure(path, size=(3 + 0.75 * sum(widths), height), dpi=120, title="") as drawn:
        grid = drawn.subplots(1, len(matrices), width_ratios=widths, squeeze=False, sharey=True)
        for axes, (column, found) in zip(grid[0], matrices.items(), strict=True):
            _panel(axes, found, *PANELS[column])


def _panel(axes: Axes, found: Matrix, title: str, colours: str) -> None:
    axes.imshow(found.values, cmap=colours, vmin=0, vmax=100, aspect="auto", alpha=0.7)
    axes.set_title(title)
    axes.set_xticks(range(len(found.attacks)), found.attacks, rotation=35, ha="right")
    axes.set_yticks(range(len(found.defences)), found.defences)
    for y, row in enumerate(found.values):
        for x, value in enumerate(row):
            if not math.isnan(value):
                axes.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=9)


def main(sweep: Path, picture: Path | None) -> None:
    """Print the tables, and draw the picture."""
    jobs = [job for job in read_jobs(sweep) if job.counts]
    matrices = {column: matrix(jobs, column) for column in PANELS}
    matrices = {column: found for column, found in matrices.items() if found.attacks}
    for column, found in matrices.items():
        print(f"{PANELS[column][0]}\n\n{table(found)}\n")  # noqa: T201 - its output
    if picture is not None:
        draw(matrices, picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
