"""What `cuda_graphs.py` calls of `torch.cuda`, for the device of `strict_device.py`.

A capture takes no effect; a replay repeats its operators on the same addresses, and raises if
memory there was freed. Otherwise it does what torch does, in the version where that is worst:
products of matrices have a workspace for each stream, which goes when a recording goes.
"""

from contextlib import contextmanager
from functools import partial
from itertools import count

import torch

from flfast.engines.fused.graph.cuda_graphs import CudaGraphs

_numbers = count(1)


class Stream:
    def __init__(self, device, number=None):
        self.device, self.device_index = device, device.index
        self.number = next(_numbers) if number is None else number

    def wait_stream(self, other):
        torch.ops.strict.wait_stream(self.number, other.number)


class Recording:
    """Stands for `torch.cuda.CUDAGraph`."""

    number = None

    def replay(self):
        torch.ops.strict.replay(self.number)

    def __del__(self):
        if self.number is not None:
            torch.ops.strict.drop(self.number)
            torch.ops.strict.clear_workspaces()


class Generator:
    """That of the CPU, which the device draws from."""

    def clone_state(self):
        return torch.get_rng_state()

    def graphsafe_set_state(self, state):
        torch.set_rng_state(state)


def current_stream(device):
    return Stream(device, torch.ops.strict.current_stream())


def set_stream(chosen):
    torch.ops.strict.set_stream(chosen.number)


@contextmanager
def stream(chosen):
    before = torch.ops.strict.current_stream()
    set_stream(chosen)
    try:
        yield
    finally:
        torch.ops.strict.set_stream(before)


@contextmanager
def graph(recording, pool, chosen, capture_error_mode):
    assert capture_error_mode == "thread_local"
    torch.ops.strict.empty_cache()
    state, failed = torch.get_rng_state(), True
    with stream(chosen):
        torch.ops.strict.begin_capture(pool)
        try:
            yield
            failed = False
        finally:
            number = torch.ops.strict.end_capture(failed)
            torch.set_rng_state(state)
    recording.number = number


def recorder(monkeypatch, device):
    """A function that makes a `CudaGraphs` of the device; `torch.cuda` is replaced for it."""
    names = {
        "CUDAGraph": Recording,
        "default_generators": [Generator()],
        "graph_pool_handle": partial(next, _numbers),
    }
    functions = (current_stream, set_stream, stream, graph, Stream)
    for name, value in {**names, **{each.__name__: each for each in functions}}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    clear = torch.ops.strict.clear_workspaces
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", clear, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *_: None, raising=False)
    return partial(CudaGraphs, device)
