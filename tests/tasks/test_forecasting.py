"""Errors of forecasts against their definitions in numpy, and their sums over parts."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flfast.tasks.forecasting import FORECASTING, OBJECTIVES
from flfast.tasks.names import METRICS

seeds = st.integers(0, 999)


def draw(num, seed, *, horizon=3, columns=2):
    """Outputs [num, H * C] and targets [num, H + 3, C] with scales that differ by example."""
    rng = np.random.default_rng(seed)
    future = rng.normal(size=(num, horizon, columns))
    facts = [rng.normal(size=(num, 1, columns)), *rng.uniform(0.5, 9, size=(2, num, 1, columns))]
    targets = torch.from_numpy(np.concatenate([future, *facts], axis=1)).float()
    return torch.from_numpy(rng.normal(size=(num, horizon * columns))).float(), targets


def expected(outputs, targets):
    """The metrics of all examples together, computed from values in units of the data."""
    future, (mean, std, naive) = targets.numpy()[:, :-3], targets.numpy()[:, -3:].swapaxes(0, 1)
    predicted = outputs.numpy().reshape(future.shape)
    unit = [values * std[:, None] + mean[:, None] for values in (predicted, future)]
    error = unit[0] - unit[1]
    return {
        "loss": np.square(predicted - future).mean(),
        "mae": np.abs(error).mean(),
        "rmse": np.sqrt(np.square(error).mean()),
        "mase": np.abs(error / (naive * std)[:, None]).mean(),
    }


@given(st.integers(1, 30), st.integers(1, 4), seeds)
def test_metrics_from_parts_are_those_of_the_whole_set(num, groups, seed):
    outputs, targets = draw(num, seed)
    group = torch.from_numpy(np.random.default_rng(seed).integers(groups, size=num))
    cut = [slice(k, k + 7) for k in range(0, num, 7)]
    parts = [FORECASTING.statistics(outputs[own], targets[own]) for own in cut]
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    metrics = FORECASTING.by_group(found, group, groups)
    assert tuple(metrics) == METRICS["forecasting"]
    for number in range(groups):
        own = group == number
        if own.any():
            for name, value in expected(outputs[own], targets[own]).items():
                assert metrics[name][number].item() == pytest.approx(value, rel=1e-4)
        else:
            assert all(values[number].isnan() for values in metrics.values())


@given(st.integers(1, 9), seeds)
def test_losses_are_of_scaled_values(num, seed):
    outputs, targets = draw(num, seed)
    errors = outputs - targets[:, :-3].reshape(num, -1)
    for name, values in {"mse": errors.square(), "mae": errors.abs()}.items():
        task = OBJECTIVES[name]
        torch.testing.assert_close(task.losses(outputs, targets), values.mean(dim=1))
        torch.testing.assert_close(task.loss(outputs, targets), values.mean())
        torch.testing.assert_close(task.statistics(outputs, targets)["loss"], values.mean(dim=1))


def test_predictions_are_in_units_of_the_data():
    targets = torch.tensor([[[1.0], [-1], [100], [10], [0.5]]])
    found = FORECASTING.statistics(torch.tensor([[2.0, -1]]), targets)
    assert found["targets"].tolist() == [[110, 90]]
    assert found["outputs"].tolist() == [[120, 90]]
    assert (found["absolute"].item(), found["scaled"].item()) == (5, 1)


GOOD = draw(2, 0)[1]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (GOOD[:, :, 0], "must be floats [N, H + 3, C] with H * C = 6"),
        (GOOD[:, 1:], "must be floats [N, H + 3, C]"),
        (GOOD.long(), "got int64 [2, 6, 2]"),
        (GOOD.clone().index_fill_(1, torch.tensor([0]), float("nan")), "is not finite"),
        (GOOD.clone().index_fill_(1, torch.tensor([5]), 0), "naive error <= 0"),
    ],
)
def test_wrong_targets_are_a_clear_error(targets, message):
    FORECASTING.check_targets(GOOD, 6)
    with pytest.raises(ValueError) as error:
        FORECASTING.check_targets(targets, 6)
    assert message in str(error.value)
