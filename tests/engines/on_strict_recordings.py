"""Recordings and the way of a round, on a device whose freed memory is poisoned.

`test_strict_device.py` runs this file, with the plugin `strict_device`. Then the recordings of
`engine_runs.Replaying` are those of `strict_cuda.py`.
"""

from functools import partial

import engine_runs
import pytest
import strict_device
import torch
from engine_runs import Replaying, mlp, ran
from strict_device import DEVICE, CopiesByRound
from torch import nn

from flfast.algorithms.fedprox import fedprox
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.graph.cuda_graphs import WARM_UPS, Replayed
from flfast.engines.fused.graph.executor import executor
from flfast.engines.fused.graph.trace import operators, rewritten
from flfast.engines.fused.training import FusedTraining

FREED = "an illegal memory access was encountered"


@pytest.fixture
def recorder():
    return engine_runs.Direct()


def filled(value, *shape):
    return torch.full(shape, value, device=DEVICE)


def change(w, x):
    product = w @ x
    w.add_(product).mul_(torch.relu(product) + 1)


def test_a_capture_takes_no_effect_and_a_replay_takes_it_again(recorder):
    w, x = filled(1.0, 3, 3), filled(0.5, 3, 3)
    replay = recorder.record(partial(change, w, x))
    expected = torch.ones(3, 3)
    torch.testing.assert_close(w.cpu(), expected)
    for value in (0.5, -0.2):
        x.fill_(value)
        replay()
        change(expected, torch.full((3, 3), value))
        torch.testing.assert_close(w.cpu(), expected)


def test_new_and_freed_memory_holds_no_number():
    assert torch.empty(3, device=DEVICE).isnan().all()
    tensor = filled(1.0, 3)
    memory = tensor.data_ptr()
    del tensor
    again = torch.empty(3, device=DEVICE)
    assert again.data_ptr() == memory
    assert again.isnan().all()


@pytest.mark.parametrize("again", [False, True])
def test_a_replay_refuses_memory_that_was_freed(recorder, again):
    """Also if other tensors have it by now."""
    w, x = filled(1.0, 3, 3), filled(0.5, 3, 3)
    replay = recorder.record(partial(change, w, x))
    del x
    others = [filled(2.0, 3, 3) for _ in range(9)] if again else []
    with pytest.raises(RuntimeError, match=FREED):
        replay()
    assert all((other == 2).all() for other in others)


def test_a_capture_refuses_what_the_host_waits_for(recorder):
    w = filled(1.0, 3)
    for read in (w.sum().item, w.cpu, w.nonzero, lambda: w[w > 0], lambda: w.copy_(torch.ones(3))):
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            recorder.record(read)
    recorder.record(lambda: w.add_(1))()
    assert (w == 2).all()


def test_streams_wait_for_each_other():
    streams = [torch.cuda.Stream(DEVICE) for _ in range(2)]
    tensor = filled(1.0, 3)
    tensor.sum().item()  # the host waits
    with torch.cuda.stream(streams[0]):
        tensor.add_(1)
    with torch.cuda.stream(streams[1]):
        with pytest.raises(RuntimeError, match="without waiting for it"):
            tensor + 1
        streams[1].wait_stream(streams[0])
        tensor + 1


def test_a_replay_draws_random_numbers_as_the_operators_do(recorder):
    x = filled(1.0, 40)
    found, expected = [], []

    def draw(into):
        into.append(nn.functional.dropout(x, 0.5))

    torch.manual_seed(3)  # noqa: TID251 - of a test
    for _ in range(3):
        draw(expected)
    torch.manual_seed(3)  # noqa: TID251 - of a test
    kept = []
    replay = recorder.record(partial(draw, kept))
    for _ in range(3):
        replay()
        found.append(kept[0].clone())
    torch.testing.assert_close(found, expected)


def step(state, context, batch):
    state["w"].sub_(torch.tanh(state["w"] @ batch["x"]) @ context["a"], alpha=0.1)


def test_state_of_another_round_is_recorded_anew(recorder):
    """It may be where the state of an earlier recording was, but for the recording's reference."""
    trees = [{"w": filled(1.0, 3, 3)}, {"a": filled(0.5, 3, 3)}, {"x": filled(0.2, 3, 3)}]
    program = executor(rewritten(operators(step, trees)), sliced=1)
    replayed = Replayed(program, recorder, num_state=1)
    for _ in range(3):
        state, expected = filled(1.0, 3, 3), filled(1.0, 3, 3)
        for value in range(WARM_UPS + 2):
            inputs = [filled(0.1 * value, 3, 3)], [filled(0.2, 2, 3, 3)]
            replayed([state, *inputs[0]], inputs[1], num=2, width=1)
            program([expected, *inputs[0]], inputs[1], num=2, width=1)
        torch.testing.assert_close(state, expected)
        del state


class Watch(CopiesByRound):
    """Notes what a round leaves, and may give back memory after it, as a callback may do."""

    def __init__(self, *, clears=False):
        super().__init__()
        self.clears, self.before, self.teardowns, self.places = clears, 0, [], []

    def on_run_start(self, federation):
        self.before = len(strict_device.teardowns)

    def on_round_end(self, federation, row, clients):
        self.teardowns.append(len(strict_device.teardowns) - self.before)
        self.places.append(next(federation.engine.site.model.parameters()).device)
        if self.clears:
            torch.ops.strict.clear_workspaces()
            torch.ops.strict.empty_cache()


@pytest.fixture
def make(make_data, make_federation):
    def make(**options):
        return make_federation(
            make_data([9, 14, 3, 26], num_test=6),
            mlp(),
            algorithm=fedprox(mu=0.5, weighting="samples"),
            optimizer=partial(torch.optim.SGD, momentum=0.9),
            rounds=5,
            trainer={"precision": "64-true"},
            **options,
        )

    return make


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("clears", [False, True])
def test_recordings_survive_rounds(make, stack, clears):
    eager = ran(make(), EagerTraining)
    fused = ran(make(callbacks=[Watch(clears=clears)]), Replaying, stack=stack)
    assert fused.engine.training.recordings() > 0
    torch.testing.assert_close(fused.weights(), eager.weights(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("engine", [EagerTraining, FusedTraining, Replaying])
def test_the_model_stays_on_the_device_until_the_run_ends(make, engine):
    watch = Watch()
    federation = ran(make(callbacks=[watch]), engine)
    assert {*watch.places} == {DEVICE}
    assert {*watch.teardowns} == {0}
    assert len(strict_device.teardowns) == watch.before + 1
    assert next(federation.engine.site.model.parameters()).device.type == "cpu"


@pytest.mark.parametrize("engine", [FusedTraining, Replaying])
def test_the_host_reads_results_only(make, engine):
    """No step reads the device, and no loop moves the model."""
    watch = Watch()
    ran(make(callbacks=[watch]), engine, stack=3)
    for copies in (*watch.trained[1:], *watch.evaluated[1:]):
        assert {copy.callers[0].rpartition(":")[0] for copy in copies} <= {
            *("state/tree.py", "lit/predictions.py", "engines/delivery.py"),
            *("channel/reduction.py", "engines/fused/run/training_state.py"),
        }
