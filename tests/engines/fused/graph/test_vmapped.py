import multiprocessing
import os
import signal

import pytest
import torch
import tqdm
from torch import nn
from torch.func import functional_call, grad

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


@pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool2d(1), nn.AvgPool2d(4)])
def test_clients_with_pooled_channels_last_images_step_as_each_alone(pool):
    torch.manual_seed(0)  # noqa: TID251 - a test's own model
    layers = (
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        pool,
        nn.Flatten(),
        nn.Linear(4, 2),
    )
    model = nn.Sequential(*layers).double().to(memory_format=torch.channels_last)

    def step(params, batch):
        def loss(weights):
            scores = functional_call(model, weights, (batch["x"],))
            return nn.functional.cross_entropy(scores, batch["y"])

        for name, gradient in grad(loss)(params).items():
            params[name].sub_(gradient)

    params = {name: leaf.detach() for name, leaf in model.named_parameters()}
    images = torch.randn(3, 5, 3, 8, 8, dtype=torch.double).movedim(2, -1).contiguous()
    batches = [{"x": x, "y": torch.arange(5) % 2} for x in images.movedim(-1, 2)]
    single = [*params.values(), *batches[0].values()]
    clients = [[*map(torch.clone, params.values()), *batch.values()] for batch in batches]
    module = operators(step, [params, batches[0]])
    stack = [torch.stack(leaf) for leaf in zip(*clients, strict=True)]
    for client in clients:
        module(*client)
    vmap_graph(module, single, [False] * len(single), 3)(*stack)
    for stacked, alone in zip(stack, zip(*clients, strict=True), strict=True):
        assert torch.allclose(stacked, torch.stack(alone), rtol=1e-12, atol=1e-14)
