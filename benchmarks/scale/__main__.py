"""Seconds of a round on many ranks: `python -m benchmarks.scale [--check]`.

Measures the constants of `model.py`, and prints the tables of docs/clusters.md: the parts of a
round, the same on a slow network, what not every round has, and with `--check` runs of up to eight
ranks beside what the formulas say about them.
"""

import argparse
import sys

import torch

from benchmarks.machine import facts, num_cores
from benchmarks.scale import check
from benchmarks.scale.constants import measured
from benchmarks.scale.model import (
    NETWORKS,
    Constants,
    Load,
    Network,
    other_terms,
    room,
    round_terms,
    start_terms,
    state_bytes,
    tree_reduce_s,
)

SIZES = ((8, 10**3), (100, 10**4), (10**3, 10**5), (10**4, 10**6))
CHECKED = ((2, 10**3), (4, 10**3), (8, 10**3), (2, 10**4), (4, 10**4), (8, 10**4))


def number(value: float) -> str:
    """Two digits, without an exponent."""
    if value >= 100:
        return f"{float(f'{value:.2g}'):,.0f}"
    return f"{float(f'{value:.2g}'):.4f}".rstrip("0").rstrip(".") if value >= 5e-4 else "< 0.001"


def rows(title: str, columns: list[dict[str, float]], *, total: bool) -> list[str]:
    """Markdown: a line for each part, a column for each size; the largest of a column is bold."""
    head = [f"{ranks:,} ranks, {cohort:,} clients" for ranks, cohort in SIZES]
    lines = [f"| {' | '.join([title, *head])} |", "|---" * (1 + len(head)) + "|"]
    for name in columns[0]:
        cells = [
            f"**{number(c[name])}**" if total and c[name] == max(c.values()) else number(c[name])
            for c in columns
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if total:
        lines.append(f"| sum | {' | '.join(number(sum(c.values())) for c in columns)} |")
    return lines


def tables(constants: Constants, name: str, network: Network, parameters: int) -> list[str]:
    """The tables of a network."""
    loads = [Load(ranks, cohort, parameters) for ranks, cohort in SIZES]
    lines = [
        "",
        *rows(f"s, {name}", [round_terms(constants, x, network) for x in loads], total=True),
    ]
    others = [
        other_terms(constants, x, network)
        | {
            "mean, if gloo took a tree": tree_reduce_s(x.ranks, 8 * x.parameters, network),
            "GB a rank receives of states": 1e-9 * x.ranks * room(state_bytes(constants, x)),
        }
        for x in loads
    ]
    lines += ["", *rows("not in every round", others, total=False)]
    for lazy in (False, True):
        starts = [start_terms(constants, x.ranks, network, lazy=lazy) for x in loads]
        title = "start, connections on demand" if lazy else "start"
        lines += ["", *rows(title, starts, total=True)]
    return lines


def checked(constants: Constants) -> list[str]:
    """Markdown: measured and predicted seconds of real runs."""
    here, cores = check.local(), num_cores()
    lines = [
        "",
        f"two ranks here: {here.network.round_trip_s * 1e6:.0f} µs a hop, "
        f"{here.network.bytes_per_s / 1e9:.2f} GB/s, barrier {here.barrier_s * 1e6:.0f} µs",
        "",
        "| ranks, clients | "
        + " | ".join(f"{part}: ms, predicted" for part in check.PARTS)
        + " |",
        "|---" * (1 + len(check.PARTS)) + "|",
    ]
    for ranks, cohort in CHECKED:
        found = check.measured(ranks, cohort)
        said = check.predicted(constants, here, cores, ranks, cohort)
        cells = [f"{1e3 * found[part]:.1f}, {1e3 * said[part]:.1f}" for part in check.PARTS]
        lines.append(f"| {ranks}, {cohort:,} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with runs; minutes")
    parser.add_argument("--parameters", type=int, default=10**6, help="of the model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    constants = measured()
    lines = [", ".join(f"{name} {value}" for name, value in facts().items()), ""]
    lines += [f"{name} = {value:.3g}" for name, value in constants._asdict().items()]
    for name, network in NETWORKS.items():
        lines += tables(constants, name, network, given.parameters)
    if given.check:
        lines += checked(constants)
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
