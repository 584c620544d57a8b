import os
import subprocess
import threading
from types import SimpleNamespace

import campaign
import pytest

from benchmarks.turns import WARM_UP, Turns, measure, table
from benchmarks.workloads import WORKLOADS

ROUNDS = 5


def test_only_one_run_computes_at_a_time(tmp_path):
    """Three members of a ring in threads: they compute in turn, and none is left waiting."""
    said = []
    for place in range(3):
        os.mkfifo(tmp_path / str(place))

    def member(place):
        turns = Turns(place=place, of=3, folder=str(tmp_path))
        for round_idx in range(ROUNDS + 1):
            if round_idx:
                said.append((round_idx, place))
            turns.on_round_end(SimpleNamespace(rounds=ROUNDS), {"round": round_idx}, {})

    first = os.open(tmp_path / "0", os.O_RDWR)
    members = [threading.Thread(target=member, args=(place,), daemon=True) for place in range(3)]
    for thread in members:
        thread.start()
    os.write(first, b"x")
    for thread in members:
        thread.join(60)
    os.close(first)
    assert said == [(round_idx, place) for round_idx in range(1, ROUNDS + 1) for place in range(3)]
    for place in range(3):
        assert len((tmp_path / f"{place}.txt").read_text().split()) == ROUNDS


def test_the_table_has_the_median_of_the_ratios():
    lines = table(["compression=sign"], [[1.0, 2.0, 4.0], [2.0, 3.0, 4.0]])
    assert lines[2:] == [
        "| `none` | 2.000 | 1.000 | 1.00 |",
        "| `compression=sign` | 3.000 | 2.000 | 1.50 |",
    ]


@campaign.only_then
def test_options_are_measured_beside_none(tmp_path):
    seconds = measure(WORKLOADS["W2"], ["compression=sign"], rounds=2, folder=tmp_path)
    assert [len(own) for own in seconds] == [2, 2]
    assert all(second > 0 for own in seconds for second in own)


@campaign.only_then
def test_a_run_that_fails_ends_the_others(tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        measure(WORKLOADS["W2"], ["compression=zip"], rounds=WARM_UP, folder=tmp_path)
