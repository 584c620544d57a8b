"""The largest batch that fits: the search against arithmetic, real steps against a budget."""

from functools import partial

import lightning as L
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.fedprox import fedprox
from flfast.lit.local_module import LocalModule
from flfast.setup.memory_search import (
    MemoryProbe,
    extrapolate,
    largest_fitting,
    measure_memory,
    num_fitting,
)
from flfast.state.plan import Batching, RoundPlan
from flfast.state.weights import flatten, read_weights

WIDTH, FEATURES, CLASSES = 32, 5, 3
PARAMETERS = FEATURES * WIDTH + WIDTH + WIDTH * CLASSES + CLASSES


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_the_search_finds_the_largest_in_a_few_trials(most, limit):
    asked = []

    def fits(num):
        asked.append(num)
        return num <= most

    assert largest_fitting(fits, limit) == min(most, limit)
    assert all(1 <= num <= limit for num in asked)
    assert len(asked) == len(set(asked)) <= 2 * limit.bit_length() + 1


def mlp():
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))


def with_batchnorm():
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3))


@pytest.fixture
def make_trial(make_data, tmp_path):
    def make(model=None, *, optimizer=torch.optim.SGD, accelerator="cpu", algorithm=None, **plan):
        data = make_data([40, 1000, 7], features=(FEATURES,))
        module = LocalModule(
            model or mlp(), algorithm or fedavg(weighting="samples"), partial(optimizer)
        )
        accumulates = plan.pop("accumulates", False)
        plan = {"precision": "32-true", **plan}

        def make_trainer(plan):
            return L.Trainer(
                accelerator=accelerator,
                devices=1,
                precision=plan.precision,
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                limit_val_batches=0,
                max_epochs=1,
                default_root_dir=tmp_path,
            )

        full = RoundPlan(
            round_idx=1,
            phase=0,
            lr=0.1,
            batching=Batching(1),
            local_epochs=1,
            local_steps=None,
            strategy="single",
            shard="clients",
            devices="",
            **plan,
        )
        return MemoryProbe(
            module, read_weights(module.model), data, make_trainer, full, accumulates
        )

    return make


def step_bytes(probe, num):
    return round(measure_memory(probe, num).peak())


def fitting(probe, budget, *, limit=1000, devices_per_batch=1):
    return num_fitting(probe, limit, devices_per_batch=devices_per_batch, budget=budget, ranks=1)


def test_bytes_of_a_step_are_those_of_its_tensors(make_trial):
    """Linear saves its input, Tanh its output, the loss its log-probabilities and targets."""
    num = 16
    saved = [4 * num * FEATURES, 4 * num * WIDTH, 4 * num * CLASSES, 8 * num]
    loss = 4  # its total weight
    found = step_bytes(make_trial(), num)
    static = 2 * 4 * PARAMETERS
    assert found == static + sum(saved) + loss + 2 * max(saved)


@pytest.mark.parametrize("optimizer", [partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam])
def test_optimizer_state_counts(make_trial, optimizer):
    more = step_bytes(make_trial(optimizer=optimizer), 8) - step_bytes(make_trial(), 8)
    copies = 1 if isinstance(optimizer, partial) else 2
    assert more == pytest.approx(copies * 4 * PARAMETERS, abs=64)  # Adam counts its steps, too


def test_a_large_weight_hides_no_activation_that_outgrows_it(make_trial):
    """Mixed precision saves a copy of the weight, which is the largest storage of small steps."""
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 512))
    probe = make_trial(model, precision="bf16-mixed")
    points = [(num, measure_memory(probe, num)) for num in (8, 16)]
    assert extrapolate(points, 800).peak() == measure_memory(probe, 800).peak()


@pytest.mark.parametrize("most", [1, 5, 16, 17, 100, 999])
def test_a_batch_fills_its_budget_and_no_more(make_trial, most):
    probe = make_trial()
    assert fitting(probe, step_bytes(probe, most)) == most
    assert fitting(probe, step_bytes(probe, most) - 1) == most - 1


class Rotated(nn.Module):
    """A linear layer whose inputs are rotated by a complex constant."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(FEATURES, CLASSES)
        self.register_buffer("rotation", torch.full((FEATURES,), 1j), persistent=False)

    def forward(self, inputs):
        return self.out((inputs * self.rotation).imag.to(inputs.dtype))


def test_a_trial_keeps_the_imaginary_part_of_a_constant(make_trial):
    module = make_trial(Rotated(), precision="64-true").run(2, num_steps=1)
    assert module.model.out.weight.dtype == torch.float64
    assert module.model.rotation.imag.tolist() == [1.0] * FEATURES


def test_never_more_than_could_be_of_use(make_trial):
    assert fitting(make_trial(), 10**12) == 1000
    assert fitting(make_trial(), 10**12, limit=3) == 3
    assert fitting(make_trial(), 0) == 0


def test_devices_that_share_a_batch_take_a_part_of_it_each(make_trial):
    probe = make_trial()
    assert fitting(probe, step_bytes(probe, 50), devices_per_batch=3) == 150


def test_half_the_bytes_hold_nearly_twice_the_batch(make_trial):
    probe, half = make_trial(), make_trial(precision="bf16-true")
    budget = step_bytes(probe, 200)
    assert 350 < fitting(half, budget) <= 480


def test_batchnorm_and_extra_terms_are_tried_too(make_trial):
    assert fitting(make_trial(with_batchnorm()), 10**9, limit=2) == 2
    prox = make_trial(algorithm=fedprox(mu=0.1, weighting="samples"))
    assert step_bytes(prox, 8) > step_bytes(make_trial(), 8)


@pytest.mark.parametrize("accumulates", [False, True])
def test_a_trial_leaves_no_trace(make_trial, accumulates):
    probe = make_trial(with_batchnorm(), accumulates=accumulates)
    before = {name: w.clone() for name, w in flatten(read_weights(probe.module.model)).items()}
    state = torch.get_rng_state()
    fitting(probe, step_bytes(probe, 60))
    torch.testing.assert_close(torch.get_rng_state(), state)
    for name, weight in flatten(read_weights(probe.module.model)).items():
        torch.testing.assert_close(weight, before[name], rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in probe.module.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_real_steps_decide(make_trial):
    model = nn.Sequential(nn.Linear(FEATURES, 2**18), nn.Tanh(), nn.Linear(2**18, CLASSES))
    probe = make_trial(model, accelerator="gpu")
    budget = 600 * 2**20  # each activation is 1 MiB an example
    found = fitting(probe, budget)
    assert 50 < found < 550
    before = torch.cuda.memory_allocated()  # libraries keep their workspaces
    probe.run(found, num_steps=2)
    assert torch.cuda.memory_allocated() <= before
    assert fitting(probe, 2 * budget) > 1.5 * found
