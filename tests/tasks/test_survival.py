"""Cox partial likelihood and Harrell's C against their definitions, in float64."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flfast.tasks.survival import SURVIVAL, concordance

seeds = st.integers(0, 999)


def draw(num, seed, *, steps=5):
    """Outputs [num, 1] and targets [num, 2], with ties in both; `steps` different values."""
    rng = torch.Generator().manual_seed(seed)
    outputs = torch.randint(-steps, steps, (num, 1), generator=rng).double()
    time = torch.randint(steps, (num,), generator=rng)
    event = torch.randint(2, (num,), generator=rng)
    return outputs, torch.stack([time, event], dim=1).float()


def terms(outputs, targets):
    """Of an event: log of the sum of all hazards at risk, minus the own log hazard."""
    risk, (time, event) = outputs[:, 0].numpy(), targets.numpy().T
    at_risk = [np.exp(risk[time >= own]).sum() for own in time]
    return event * (np.log(at_risk) - risk)


def harrell(outputs, targets):
    pairs, higher = 0, 0.0
    examples = zip(outputs[:, 0].tolist(), targets.tolist(), strict=True)
    for (one, (t, e)), (other, (u, f)) in itertools.permutations(examples, 2):
        if e and (t < u or (t == u and not f)):
            pairs += 1
            higher += 1.0 if one > other else 0.5 * (one == other)
    return higher / pairs if pairs else float("nan")


@given(st.integers(1, 25), seeds)
def test_the_loss_is_the_partial_likelihood_with_breslows_ties(num, seed):
    outputs, targets = draw(num, seed)
    expected = terms(outputs, targets)
    assert SURVIVAL.losses(outputs, targets).numpy() == pytest.approx(expected, abs=1e-9)
    assert SURVIVAL.loss(outputs, targets).item() == pytest.approx(expected.mean(), abs=1e-9)
    shifted = SURVIVAL.losses(outputs + 7, targets)  # no baseline hazard
    assert shifted.numpy() == pytest.approx(expected, abs=1e-9)


@given(st.integers(1, 12), seeds)
def test_gradients_are_finite_zero_without_events_and_the_same_in_a_stack(num, seed):
    outputs, targets = draw(num, seed, steps=50)
    outputs = 20 * outputs.float()  # of which exponentials overflow
    gradient = torch.func.grad(SURVIVAL.loss)
    found = gradient(outputs, targets)
    assert found.isfinite().all()
    censored = targets * torch.tensor([1.0, 0.0])
    assert SURVIVAL.loss(outputs, censored) == 0
    assert not gradient(outputs, censored).any()
    stacked = torch.vmap(gradient)(
        torch.stack([outputs, outputs]), torch.stack([targets, censored])
    )
    torch.testing.assert_close(stacked, torch.stack([found, torch.zeros_like(found)]))


@given(st.integers(1, 30), st.integers(1, 4), seeds)
def test_metrics_are_those_of_each_group_alone(num, groups, seed):
    outputs, targets = draw(num, seed)
    group = torch.from_numpy(np.random.default_rng(seed).integers(groups, size=num))
    found = SURVIVAL.by_group(SURVIVAL.statistics(outputs, targets), group, groups)
    for number in range(groups):
        own = group == number
        expected = harrell(outputs[own], targets[own])
        assert found["concordance"][number].item() == pytest.approx(expected, nan_ok=True)
        loss = terms(outputs[own], targets[own]).mean() if own.any() else float("nan")
        assert found["loss"][number].item() == pytest.approx(loss, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("num", [pytest.param(100_000, marks=pytest.mark.slow), 20_000])
def test_many_examples_take_little_memory_and_diverged_models_are_ties(num):
    time, none = torch.arange(num).float(), torch.zeros(num, dtype=torch.int64)
    for outputs, expected in ((-time, 1.0), (time, 0.0), (time * float("nan"), 0.5)):
        assert concordance(outputs, time, torch.ones(num), none, 1) == expected


@pytest.mark.parametrize(
    ("targets", "num_outputs", "message"),
    [
        (torch.zeros(2, 2), 3, "gives one number, got 3"),
        (torch.zeros(2), 1, "must be floats [N, 2], time and event, got float32 [2]"),
        (torch.zeros(2, 2).long(), 1, "must be floats [N, 2], time and event, got int64 [2, 2]"),
        (torch.tensor([[1.0, 1], [-1, 0]]), 1, "time of example 1 is -1; allowed: 0 or more"),
        (torch.tensor([[float("nan"), 1]]), 1, "time of example 0 is nan; allowed"),
        (torch.tensor([[1.0, 0], [0, 2]]), 1, "event of example 1 is 2; allowed: 0 (censored)"),
    ],
)
def test_wrong_targets_are_a_clear_error(targets, num_outputs, message):
    with pytest.raises(ValueError) as error:
        SURVIVAL.check_targets(targets, num_outputs)
    assert message in str(error.value)
