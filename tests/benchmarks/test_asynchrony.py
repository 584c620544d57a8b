"""The comparison of paces reads runs in virtual time."""

import math

import pytest

from benchmarks.asynchrony import (
    DATASETS,
    curve,
    draw,
    end_of,
    last_rounds,
    reached,
    read,
    slow_accuracy,
    slow_updates,
    table,
)
from flfast.output.results.table import RoundTable

CONFIG = """
seed: 0
devices:
  _target_: flfast.federation.devices.tiers.Tiers
  shares: [0.5, 0.5]
  slowdown: [1.0, 10.0]
  speed: 75.0
  down_mbit: null
  up_mbit: null
  fixed: 0.0
  available: 1.0
  hazard: 0.0
"""
COLUMN = "global/accuracy"


def make_run(folder, accuracies, *, seconds):
    """A run in which client r uploads in round r, and all are evaluated after it."""
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "config.yaml").write_text(CONFIG)
    metrics, clients = (
        RoundTable(folder / name, ["round"]) for name in ("metrics.csv", "clients.csv")
    )
    for round_idx, accuracy in enumerate(accuracies):
        row = {"round": round_idx, COLUMN: accuracy}
        if round_idx:
            row |= {"clock/seconds": seconds * round_idx, "cohort/clients": 3}
            row |= {"cohort/rejected": 1, "comm/up_bytes": 4e6, "comm/down_bytes": 1e6}
        metrics.append([row], round_idx=round_idx)
        rows = [
            {
                "round": round_idx,
                "client_id": client,
                "status": "trained" if client == round_idx > 0 else "",
                "local/accuracy": client / 10,
            }
            for client in range(8)
        ]
        clients.append(rows, round_idx=round_idx)


@pytest.fixture
def runs(tmp_path):
    make_run(tmp_path / "sync" / "0", [0.1, "", 0.95], seconds=30)
    make_run(tmp_path / "sync" / "1", [0.1, 0.6, 0.92], seconds=20)
    make_run(tmp_path / "FedBuff" / "0", [0.1, 0.5, 0.9, 0.7, 0.8], seconds=10)
    make_run(tmp_path / "FedBuff" / "1", [0.1, 0.5, 0.6, 0.7, 0.8], seconds=10)
    return read(tmp_path)


def test_the_goal_counts_rounds_that_are_not_evaluated(runs):
    assert reached(runs["sync"][0], COLUMN, 0.9) == (60, 4, 10)
    assert reached(runs["sync"][0], COLUMN, 0.1) == (0, 0, 0)
    assert all(map(math.isnan, reached(runs["FedBuff"][1], COLUMN, 0.9)))


def test_runs_are_compared_at_a_time_that_all_have_measured(runs):
    assert end_of(runs) == 40
    assert curve(runs["sync"][0], COLUMN) == ([0, 60], [0.1, 0.95])
    assert [last_rounds(run, COLUMN, 40) for run in runs["sync"]] == [[0], [2]]
    assert last_rounds(runs["FedBuff"][0], COLUMN, 20) == [2]


def test_slow_clients_are_those_of_the_slowest_tier(runs):
    run = runs["FedBuff"][0]
    assert 0 < len(run.slow) < 8
    assert slow_updates(run, 4) == sum(client in run.slow for client in range(1, 5)) / 4
    assert slow_accuracy(run, [3, 4]) == pytest.approx(sum(run.slow) / len(run.slow) / 10)


def test_the_table_has_a_row_for_each_pace_that_ran(runs):
    head, _, sync, fedbuff = table("digits", runs).splitlines()
    assert "seconds to 90 %" in head
    assert "accuracy at 32 to 40 s" in head
    assert sync.startswith("| sync | 50 (40 to 60) | 4 (4 to 4) | 10 (10 to 10) | 51.0 (10.0 to ")
    assert fedbuff.startswith("| FedBuff | never in 1 of 2 | never in 1 of 2 |")


def test_every_dataset_has_the_same_paces_and_a_panel(runs, tmp_path):
    assert len({tuple(dataset.paces) for dataset in DATASETS.values()}) == 1
    draw({"digits": runs}, tmp_path / "asynchrony.png")
    assert (tmp_path / "asynchrony.png").stat().st_size > 0
