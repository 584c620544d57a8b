"""Pipes between ranks carry what gloo carries, and say when a rank has ended."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from sampling import others_slow

from flfast.distributed import pipes
from flfast.distributed import world as world_module
from flfast.distributed.pipes import ROOM, Pipes, connected
from flfast.distributed.world import all_reduce, gather, open_pipes, sum_over_ranks

LENGTHS = (1, 4096, 16385, 200_000, ROOM // 2 - 8192, ROOM // 2, ROOM, 3 * ROOM)
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)


def both_ways(work):
    """What some work gives through pipes, and without them."""
    assert world_module._pipes, "all ranks are on this machine"
    by_pipes = work()
    kept = world_module._pipes[:]
    world_module._pipes.clear()
    try:
        return by_pipes, work()
    finally:
        world_module._pipes.extend(kept)


@pytest.mark.parametrize("size", others_slow([2, 3], [2]))
def test_pipes_carry_what_gloo_carries(in_world, size):
    """Messages of any length, also one of many with a long one; sums of any type."""

    def run(world):
        def messages():
            found = [gather(world, bytes([world.rank]) * n) for n in LENGTHS]
            return [*found, gather(world, bytes(3 * ROOM if world.rank == 1 else 5))]

        def sums():
            found = []
            for num in (0, 1, 1000, ROOM // 4):
                for dtype in TYPES:
                    values = (torch.arange(num) % 7 + world.rank).to(dtype)
                    all_reduce(world, values)
                    found.append(values)
            part = torch.arange(12.0).reshape(3, 4).T * (world.rank + 1)
            all_reduce(world, part)
            return [*found, part]

        one, other = both_ways(messages)
        assert one == other
        one, other = both_ways(sums)
        assert all(
            torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True)
        )
        one, other = both_ways(lambda: sum_over_ranks(world, [1.5, world.rank]))
        assert one == other == [1.5 * size, sum(range(size))]
        return [len(message) for message in gather(world, b"x" * world.rank)]

    assert in_world(size, run) == {rank: [*range(size)] for rank in range(size)}


def test_a_slow_reader_stops_nobody_for_two_messages(in_world):
    """The fast rank is at most one exchange ahead, whatever the lengths."""

    def run(world):
        for num in range(20):
            if num % 2 == world.rank:
                time.sleep(0.01)
            most = ROOM // 2 - 2 * pipes.PAGE - 100
            found = gather(world, (num, bytes(most)))
            assert [number for number, _ in found] == [num] * world.size
        return True

    assert all(in_world(2, run).values())


def test_a_rank_that_has_ended_is_named(in_world):
    def run(world):
        if world.rank == 1:
            open_pipes(0, 1, 0)
        dist.barrier()
        if world.rank == 0:
            with pytest.raises(RuntimeError, match=r"^rank 1 has ended$"):
                gather(world, "a message")
        dist.barrier()
        return True

    assert all(in_world(2, run).values())


def test_a_rank_that_says_nothing_is_named_in_time(in_world):
    def run(world):
        dist.barrier()
        few = connected(world.rank, 2, gathered, timeout_s=0.2)
        if world.rank == 0:
            with pytest.raises(RuntimeError, match=r"^rank 1 sends nothing for 0\.2 s$"):
                few.exchange(b"a message")
        dist.barrier()
        return True

    assert all(in_world(2, run).values())


def test_a_wait_may_be_longer_than_the_system_knows(in_world):
    def run(world):
        return connected(world.rank, 2, gathered, timeout_s=1e12).exchange(b"a message")

    assert in_world(2, run) == {rank: [b"a message"] * 2 for rank in range(2)}


def gathered(value):
    found = [None, None]
    dist.all_gather_object(found, value)
    return found


def test_ranks_of_other_machines_use_gloo(in_world, monkeypatch):
    """So do ranks that do not see each other's processes."""

    def run(world):
        elsewhere = f"/proc/{os.getpid()}/fd/0", "pipe:[0]"

        def lying(value):
            told = dict.fromkeys(value, elsewhere) if type(value) is dict else value
            return gathered(told if world.rank else value)

        return connected(world.rank, world.size, lying, timeout_s=1)

    assert in_world(2, run) == {0: None, 1: None}
    monkeypatch.setattr("sys.platform", "darwin")
    assert connected(0, 2, lambda value: pytest.fail("nothing is exchanged"), timeout_s=1) is None


def test_small_pipes_carry_short_messages():
    """Where a user may have no large ones: 64 KB, and 4 KB at the least."""
    assert Pipes(0, {}, most=10, timeout_s=1).exchange(b"ten bytes.") == [b"ten bytes."]
    assert Pipes(0, {}, most=10, timeout_s=1).exchange(b"eleven byte") is None
    assert Pipes(0, {}, most=4096 // 2 - 2 * pipes.PAGE, timeout_s=1).exchange(b"x") is None
