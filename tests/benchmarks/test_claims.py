"""The table about a claim: what counts of a run, and runs that do not reach a target."""

import pytest
from run_folders import record

from benchmarks.claims import END, TAIL, rounds_to, table


def job(algorithm, seed, losses, accuracies):
    history = [
        {"round": str(r), "global/loss": str(loss), "global/accuracy": str(accuracy)}
        for r, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True))
    ]
    return record(history, {"algorithm": algorithm}, seed=seed)


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_last_rounds_count():
    losses = [9.0] * 5 + [1.0, 3.0] * (TAIL // 2)
    jobs = [job("fedavg", seed, losses, [0.1 * (seed + 1)] * len(losses)) for seed in (0, 1)]
    jobs += [job("fednova", 0, losses, [0.5] * len(losses))]
    head, _, fedavg, fednova = map(cells, table(jobs, END).splitlines())
    assert head == ["algorithm", "seeds", *END]
    assert fedavg == ["fedavg", "2", "2.000 ± 0.000", "1.000 ± 0.000", "0.150 ± 0.071"]
    assert fednova == ["fednova", "1", "2.000", "1.000", "0.500"]


@pytest.mark.parametrize(("last", "expected"), [(0.8, "1.8 ± 0.3"), (0.7, "1 of 2 seeds")])
def test_seeds_that_do_not_reach_the_target_are_counted(last, expected):
    # The first seed crosses 0.8 at 1 + 3 / 5, the second at 2, or never.
    jobs = [job("fedavg", 0, [1, 1, 1], [0.0, 0.5, 1.0]), job("fedavg", 1, [1] * 3, [0, 0, last])]
    line = table(jobs, {"rounds": (rounds_to(0.8), ".1f")}).splitlines()[-1]
    assert cells(line) == ["2", expected]
