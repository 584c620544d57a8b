import multiprocessing
import os
import signal

import pytest
import torch
import tqdm

from flfast.engines.fused.graph.trace import operators
from flfast.engines.fused.graph.vmapped import vmap_graph


@pytest.fixture
def held_lock():
    """A lock of tqdm that a forked process has taken to its grave."""
    fork = multiprocessing.get_context("fork")
    before, lock, taken = tqdm.tqdm.get_lock(), fork.RLock(), fork.Event()
    tqdm.tqdm.set_lock(lock)

    def take():
        lock.acquire()
        taken.set()
        os.kill(os.getpid(), signal.SIGKILL)

    process = fork.Process(target=take)
    process.start()
    process.join()
    assert taken.is_set()
    yield lock
    tqdm.tqdm.set_lock(before)


@pytest.mark.timeout(60)
def test_a_stack_is_traced_while_a_killed_process_has_the_lock_of_tqdm(held_lock):
    assert not held_lock.acquire(block=False)
    module = operators(lambda state: state["w"].mul_(2.0), [{"w": torch.ones(3)}])
    stacked = vmap_graph(module, [torch.ones(3)], [False], 2)
    w = torch.ones(2, 3)
    stacked(w)
    assert torch.equal(w, torch.full((2, 3), 2.0))
