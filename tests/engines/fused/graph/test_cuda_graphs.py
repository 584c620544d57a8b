"""Replaying a program is running it; here without a GPU, where a recording is the run itself."""

import random
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain, cycle, islice

import pytest
import torch
from engine_runs import Direct, Replaying, assert_engines_agree, mlp, with_batchnorm
from hypothesis import given
from hypothesis import strategies as st
from sampling import others_slow

from flfast.algorithms.fedprox import fedprox
from flfast.engines.fused.graph import cuda_graphs
from flfast.engines.fused.graph.cuda_graphs import (
    MAX_STEPS,
    WARM_UPS,
    CudaGraphs,
    Replayed,
)
from flfast.engines.fused.graph.executor import executor
from flfast.engines.fused.graph.trace import operators, rewritten
from flfast.engines.fused.graph.vmapped import vmap_graph
from flfast.state.plan import Batching


def step(state, context, batch):
    hidden = torch.tanh(batch["x"] @ state["w"].t() + context["b"])
    state["w"].sub_(hidden.t() @ batch["x"], alpha=0.1)
    state["sum"].addcmul_(hidden.sum(), context["b"].sum())


class Counting(Direct):
    """Keeps what it recorded."""

    def __init__(self):
        self.warmed, self.recorded = 0, []

    def warm_up(self, run):
        self.warmed += 1
        run()

    def record(self, run):
        self.recorded.append(run)
        return run


class Refusing(Direct):
    """Records as a GPU does where an operator waits for it."""

    def record(self, run):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


def drawn(*shape, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def state_of(width=None):
    lead = () if width is None else (width,)
    return [drawn(*lead, 2, 3, seed=1), drawn(*lead, seed=2)]


@cache
def script_of(width=None):
    w, total = state_of()
    trees = [{"w": w, "sum": total}, {"b": drawn(2), "unread": drawn(5)}, {"x": drawn(6, 3)}]
    module = operators(step, trees)
    if width is None:
        return executor(rewritten(module), sliced=1)
    flat = [leaf for tree in trees for leaf in tree.values()]
    shared = [False, False, True, True, False]
    return executor(*(rewritten(vmap_graph(module, flat, shared, n)) for n in (2, 3)), sliced=1)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.sampled_from([None, 2, 5]))
def test_it_takes_the_steps_of_the_script(nums, width):
    script = script_of(width)
    found, expected = state_of(width), state_of(width)
    replayed = Replayed(script, Direct(), num_state=2)
    for seed, num in enumerate(nums):
        rows = [drawn(num, *([] if width is None else [width]), 6, 3, seed=seed)]
        context = [drawn(2, seed=seed), drawn(5)]  # new tensors in every round
        replayed([*found, *context], rows, num=num, width=width or 1)
        script([*expected, *context], rows, num=num, width=width or 1)
    torch.testing.assert_close(found, expected)


def test_a_recording_reads_nothing_that_comes_from_outside_but_the_state():
    script, recorder = script_of(), Counting()
    found, expected = state_of(), state_of()
    replayed = Replayed(script, recorder, num_state=2)
    context, rows = [drawn(2), drawn(5)], [drawn(1, 6, 3)]
    for _ in range(WARM_UPS + 1):
        replayed([*found, *context], rows, num=1, width=1)
        script([*expected, *context], rows, num=1, width=1)
    script([*expected, *context], rows, num=1, width=1)
    for leaf in (*context, *rows):
        leaf.fill_(torch.nan)
    recorder.recorded[0]()
    torch.testing.assert_close(found, expected)


def test_every_place_of_state_has_recordings_of_its_own():
    script = script_of()
    replayed = Replayed(script, Direct(), num_state=2)
    context = [drawn(2), drawn(5)]
    found, expected = ([state_of(), state_of()] for _ in range(2))
    for seed in range(12):
        rows, place = [drawn(3, 6, 3, seed=seed)], seed % 3 % 2
        replayed([*found[place], *context], rows, num=3, width=1)
        script([*expected[place], *context], rows, num=3, width=1)
    torch.testing.assert_close(found, expected)


class CountingReplays(Direct):
    """Counts the replays."""

    num = 0

    def record(self, run):
        def replay():
            self.num += 1
            run()

        return replay


def replays(widths, num_calls):
    """Share of calls that were replayed, of stacks whose widths follow each other."""
    recorder, states = CountingReplays(), {}
    replayed = Replayed(script_of(2), recorder, num_state=2)
    for width in islice(widths, num_calls):
        fixed = [*states.setdefault(width, state_of(width)), drawn(2), drawn(5)]
        replayed(fixed, [drawn(1, width, 6, 3)], num=1, width=width)
    assert len(replayed._recordings) <= cuda_graphs.MAX_RECORDINGS
    return recorder.num / num_calls


def drawn_widths(num):
    rng = random.Random(0)
    while True:
        yield 1 + rng.randrange(num)


@pytest.mark.parametrize("widths", [cycle(range(1, 66)), drawn_widths(65)], ids=["cycle", "drawn"])
def test_most_calls_are_replayed_with_more_states_than_recordings(widths):
    assert replays(widths, 65 * 20) > 0.7


def test_recordings_give_way_to_states_that_are_used_instead():
    early, late = cycle(range(1, 65)), cycle(range(65, 129))
    assert replays(chain(islice(early, 64 * 6), late), 64 * 24) > 0.5


def test_few_recordings_serve_every_number_of_steps():
    recorder = Counting()
    replayed = Replayed(script_of(), recorder, num_state=2)
    fixed = [*state_of(), drawn(2), drawn(5)]
    for num in range(1, 60):
        replayed(fixed, [drawn(num, 6, 3)], num=num, width=1)
    assert recorder.warmed == WARM_UPS
    assert len(recorder.recorded) == MAX_STEPS.bit_length()


def test_what_cannot_be_recorded_runs_as_it_is(caplog):
    script = script_of()
    found, expected = state_of(), state_of()
    replayed = Replayed(script, Refusing(), num_state=2)
    for seed in range(WARM_UPS + 3):
        fixed, rows = [drawn(2), drawn(5)], [drawn(7, 6, 3, seed=seed)]
        replayed([*found, *fixed], rows, num=7, width=1)
        script([*expected, *fixed], rows, num=7, width=1)
    torch.testing.assert_close(found, expected)
    said = [own.getMessage() for own in caplog.records if own.name == cuda_graphs.__name__]
    assert said == [
        "A program runs operator by operator, it was not recorded: "
        "operation not permitted when stream is capturing"
    ]


class Cuda:
    """What `CudaGraphs` calls of `torch.cuda`, with the state that torch 2.8 leaves of an error.

    A capture that an operator made invalid ends with an error: the stream stays the current one,
    the allocator in the pool, and the generator in the capture.
    """

    device_index, index = 0, 0

    def __init__(self, patch):
        self.device = self
        self.streams, self.pools, self.modes, self.generator = ["first"], [], [], "seeded"
        self.default_generators = [self]
        names = ("CUDAGraph", "Stream", "current_stream", "default_generators", "graph")
        for name in (*names, "graph_pool_handle", "set_stream"):
            patch.setattr(torch.cuda, name, getattr(self, name), raising=False)
        patch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_pool, raising=False)
        patch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)

    def Stream(self, device):  # noqa: N802
        return self

    def CUDAGraph(self):  # noqa: N802
        return self

    def current_stream(self, device):
        return self

    def set_stream(self, stream):
        self.streams = self.streams[:1]

    def graph_pool_handle(self):
        return object()

    def end_pool(self, device_index, pool):
        self.pools.remove(pool)

    def clone_state(self):
        return self.generator

    def graphsafe_set_state(self, state):
        self.generator = state

    def replay(self):
        pass

    @contextmanager
    def graph(self, graph, pool, stream, capture_error_mode="global"):
        assert pool not in self.pools
        self.pools.append(pool)
        self.streams.append("capture")
        self.modes.append(capture_error_mode)
        self.generator = "captured"
        yield
        self.pools.remove(pool)
        self.streams.pop()
        self.generator = "seeded"


def failing():
    raise RuntimeError("operation not permitted when stream is capturing")


def test_a_capture_that_fails_leaves_nothing_behind(monkeypatch):
    cuda = Cuda(monkeypatch)
    recorder = CudaGraphs(torch.device("cuda", 0))
    recorder.record(lambda: None)
    with pytest.raises(RuntimeError, match="when stream is capturing"):
        recorder.record(failing)
    assert (cuda.streams, cuda.pools, cuda.generator) == (["first"], [], "seeded")
    recorder.record(lambda: None)


def test_other_threads_do_not_end_a_capture(monkeypatch):
    """Such as the one that pins the batches of an evaluation."""
    cuda = Cuda(monkeypatch)
    CudaGraphs(torch.device("cuda", 0)).record(lambda: None)
    assert cuda.modes == ["thread_local"]


class FailingOnce(Counting):
    failures = 0

    def record(self, run):
        if len(self.recorded) == 1 and not self.failures:
            self.failures += 1
            failing()
        return super().record(run)


def test_what_was_recorded_before_a_failure_is_recorded_anew():
    """Its random numbers come from a state of the generator that was left behind."""
    recorder = FailingOnce()
    first, second = (Replayed(script_of(), recorder, num_state=2) for _ in range(2))
    fixed, rows = [*state_of(), drawn(2), drawn(5)], [drawn(1, 6, 3)]
    for program in (first, second, first):
        for _ in range(WARM_UPS + 1):
            program(fixed, rows, num=1, width=1)
    assert len(recorder.recorded) == 2


RECORDED = [
    (1, Batching(4, drop_single=True), with_batchnorm),
    (1, Batching(8, micro_batch=3), mlp),  # accumulated, and applied by steps without rows
    (3, Batching(4), mlp),
    (9, Batching(4, drop_single=True), with_batchnorm),
]


@pytest.mark.parametrize(("stack", "batching", "model"), others_slow(RECORDED, RECORDED[1:2]))
def test_rounds_of_recordings_are_those_of_the_eager_engine(
    make_data, make_federation, stack, batching, model
):
    def make():
        return make_federation(
            make_data([9, 14, 3, 26]),
            model(),
            algorithm=fedprox(mu=0.5, weighting="samples"),
            optimizer=partial(torch.optim.SGD, momentum=0.9),
            batching=batching,
            rounds=4,
            trainer={"precision": "64-true"},
        )

    fused = assert_engines_agree(make, stack=stack, engine=Replaying)
    assert fused.engine.training.recordings() > 0


def test_what_is_dropped_is_recorded_anew(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_BYTES", 0)
    script, recorder = script_of(), Counting()
    replayed = Replayed(script, recorder, num_state=2)
    context = [drawn(2), drawn(5)]
    found, expected = ([state_of(), state_of()] for _ in range(2))
    for seed in range(4 * (WARM_UPS + 1)):
        rows, place = [drawn(2, 6, 3, seed=seed)], seed // (2 * (WARM_UPS + 1))
        replayed([*found[place], *context], rows, num=2, width=1)
        script([*expected[place], *context], rows, num=2, width=1)
    torch.testing.assert_close(found, expected)
    assert len(recorder.recorded) == 2 and len(replayed._recordings) == 1
