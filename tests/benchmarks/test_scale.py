"""The formulas of a round on many ranks, by hand."""

import math
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from benchmarks.scale.model import (
    RECORD_BYTES,
    Constants,
    Load,
    Network,
    all_reduce_s,
    gather_s,
    other_terms,
    room,
    round_terms,
    start_terms,
    tree_reduce_s,
)

ONES = Constants(**dict.fromkeys(Constants._fields, 1.0))
AT_ONCE = Network(0.0, float("inf"))


def test_a_message_has_the_room_of_the_next_power_of_two():
    assert [room(n) for n in (0, 1024, 1025, 2048, 5000)] == [1024, 1024, 2048, 2048, 8192]


def test_collectives_are_rings():
    assert gather_s(5, 2000, Network(1.0, 8.0)) == 4 * (1 + (8 + 2048) / 8)
    assert all_reduce_s(4, 400, Network(1.0, 100.0)) == 6 * (1 + 1)
    assert tree_reduce_s(4, 400, Network(1.0, 100.0)) == 2 * (2 + 3)


def test_what_grows_with_clients_and_what_with_ranks_as_well():
    small, large = (round_terms(ONES, Load(r, k), AT_ONCE) for r, k in ((10, 100), (20, 200)))
    grew = {name: large[name] / small[name] for name in small if small[name]}
    assert grew["cohort assigned to ranks"] == pytest.approx(
        200 * (1 + math.log2(20)) / (100 * (1 + math.log2(10)))
    )
    assert set(grew) - {"cohort assigned to ranks"} == {
        "cohort drawn",
        "reports, read by every rank",
        "`clients.csv`, rank 0",
        "predictions and metrics",
    }
    assert all(grew[name] == 2 for name in grew if name != "cohort assigned to ranks")


def test_ranks_receive_all_states_that_move():
    network = Network(0.0, 1.0)
    found = other_terms(ONES, Load(4, 8, parameters=256), network)
    # Two clients a rank, 1 KiB each, all of which move; and each of 8 states is read.
    assert found["states that move, there and back"] == 2 * (3 * (8 + 2048) + 8 * 256)


def test_a_start_asks_for_every_pair_of_ranks_unless_connections_are_made_on_demand():
    mesh, lazy = (start_terms(ONES, 10, Network(0.0, 1.0), lazy=lazy) for lazy in (False, True))
    assert (mesh["requests for records"], lazy["requests for records"]) == (90, 20)
    assert mesh["bytes of records"] == 90 * (154 + 80)
    assert lazy["bytes of records"] == 20 * 154


@pytest.mark.parametrize("lazy", [False, True])
def test_gloo_writes_records_of_that_size(lazy, monkeypatch):
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", str(int(lazy)))

    def record_bytes(size):
        store = dist.HashStore()
        with ThreadPoolExecutor(size) as threads:
            limit = timedelta(seconds=20)
            join = [
                threads.submit(dist.ProcessGroupGloo, store, rank, size, limit)
                for rank in range(size)
            ]
            groups = [future.result() for future in join]
        assert len(groups) == size
        return len(store.get("0/0"))

    few = record_bytes(2)
    assert record_bytes(5) - few == (0 if lazy else 3 * RECORD_BYTES[1])
    assert few == pytest.approx(RECORD_BYTES[0], abs=80)  # it has the machine's name
