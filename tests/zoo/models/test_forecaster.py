import pytest
import torch

from flfast.zoo.models.forecaster import Forecaster

MODELS = {"linear": (None, 1), "lstm": (4, 2)}


def build(name, *, horizon=7, season=4):
    """A model of 3 channels, of which 2 are forecast, and windows of 10 steps."""
    hidden, layers = MODELS[name]
    options = {"horizon": horizon, "season": season, "hidden": hidden, "layers": layers}
    return Forecaster(input_shape=(3, 10), num_classes=2 * horizon, **options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("season", [1, 4, 10])
def test_before_training_they_are_the_seasonal_naive_forecast(name, season):
    windows = torch.randn(5, 3, 10)
    found = build(name, season=season)(windows).view(5, 7, 2)
    for step in range(7):
        expected = windows[:, :2, 10 - season + step % season]
        torch.testing.assert_close(found[:, step], expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_shift_of_the_series_shifts_forecasts(name):
    model, windows = build(name).double(), torch.randn(5, 3, 10).double()
    torch.nn.init.normal_(model.fc.weight)
    torch.testing.assert_close(model(windows + 7), model(windows) + 7)
    assert not torch.allclose(model(windows), build(name).double()(windows))


@pytest.mark.parametrize("name", MODELS)
def test_other_data_and_long_seasons_are_refused(name):
    with pytest.raises(ValueError, match="needs windows of task=forecasting"):
        build(name, horizon=0)
    with pytest.raises(ValueError, match=r"model\.season=11 exceeds data\.window=10; allowed: 1"):
        build(name, season=11)
