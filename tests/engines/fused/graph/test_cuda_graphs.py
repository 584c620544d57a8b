"""Replaying a program is running it; here without a GPU, where a recording is the run itself."""

from functools import cache, partial

import pytest
import torch
from engine_runs import Replaying, assert_engines_agree, mlp, with_batchnorm
from hypothesis import given
from hypothesis import strategies as st
from sampling import others_slow

from flfast.algorithms.fedprox import fedprox
from flfast.engines.fused.graph import cuda_graphs
from flfast.engines.fused.graph.cuda_graphs import MAX_STEPS, WARM_UPS, Direct, Replayed
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


RECORDED = [
    (1, Batching(4, drop_single=True), with_batchnorm),
    (1, Batching(8, micro_batch=3), mlp),  # accumulated, and applied by steps without rows
    (3, Batching(4), mlp),
    (9, Batching(4, drop_single=True), with_batchnorm),
]


@pytest.mark.parametrize(("stack", "batching", "model"), others_slow(RECORDED, RECORDED[1:3]))
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
