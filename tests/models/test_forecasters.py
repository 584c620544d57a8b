import pytest
import torch

from flfast.models.forecasters import LinearForecaster, LSTMForecaster

MODELS = {"linear": (LinearForecaster, {}), "lstm": (LSTMForecaster, {"hidden": 4, "layers": 2})}


def build(name, *, channels=3, window=10, horizon=7, season=4, targets=2):
    make, options = MODELS[name]
    shape, num = (channels, window), horizon * targets
    return make(input_shape=shape, num_classes=num, horizon=horizon, season=season, **options)


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
