"""Forecasters: a linear map and an LSTM. Each adds a correction to the seasonal naive forecast.

Both begin with a correction of zero, so before training they are the seasonal naive forecast.
Zeng, Chen, Zhang, Xu: Are Transformers Effective for Time Series Forecasting? AAAI 2023, which
subtracts the last value from windows, as `season=1` does here.
"""

import torch
from torch import Tensor, nn

from flfast.state.options import Count


class _Forecaster(nn.Module):
    """Windows [B, X, L] -> forecasts [B, H * C] of the first C channels, step by step.

    `correction` is what a subclass adds, [B, C, H]. The window that it sees is relative to each
    channel's mean over the last season.
    """

    def __init__(
        self, name: str, input_shape: tuple[int, ...], num_classes: int, horizon: int, season: int
    ) -> None:
        super().__init__()
        if not horizon or len(input_shape) != 2:
            raise ValueError(
                f"model={name} needs windows of task=forecasting, such as data=series; the data "
                f"have shape {list(input_shape)}; allowed: another model"
            )
        if season > input_shape[1]:
            raise ValueError(
                f"model.season={season} exceeds data.window={input_shape[1]}; allowed: 1 to "
                f"{input_shape[1]}"
            )
        self.horizon, self.season = horizon, season
        self.num_targets = num_classes // horizon

    def forward(self, windows: Tensor) -> Tensor:
        """See the class."""
        last = windows[:, :, -self.season :]
        repeats = -(-self.horizon // self.season)
        naive = last[:, : self.num_targets].repeat(1, 1, repeats)[:, :, : self.horizon]
        found = naive + self.correction(windows - last.mean(dim=2, keepdim=True))
        return found.transpose(1, 2).flatten(1)

    def correction(self, windows: Tensor) -> Tensor:
        """What is added to the naive forecast, [B, C, H]."""
        raise NotImplementedError


class LinearForecaster(_Forecaster):
    """A linear map of the window, the same for all channels that are predicted."""

    def __init__(
        self, *, input_shape: tuple[int, ...], num_classes: int, horizon: int, season: Count
    ) -> None:
        super().__init__("linear_forecaster", input_shape, num_classes, horizon, season)
        self.fc = _zero(nn.Linear(input_shape[1], horizon))

    def correction(self, windows: Tensor) -> Tensor:
        """See `_Forecaster`."""
        found: Tensor = self.fc(windows[:, : self.num_targets])
        return found


class LSTMForecaster(_Forecaster):
    """LSTM layers over the seasons of the window, all channels at once, and a linear map."""

    def __init__(
        self,
        *,
        input_shape: tuple[int, ...],
        num_classes: int,
        horizon: int,
        season: Count,
        hidden: Count,
        layers: Count,
    ) -> None:
        super().__init__("lstm_forecaster", input_shape, num_classes, horizon, season)
        self.lstm = nn.LSTM(input_shape[0] * season, hidden, num_layers=layers, batch_first=True)
        self.fc = _zero(nn.Linear(hidden, num_classes))

    def correction(self, windows: Tensor) -> Tensor:
        """See `_Forecaster`."""
        steps = windows.shape[2] // self.season * self.season
        seasons = windows[:, :, -steps:].unflatten(2, (-1, self.season)).transpose(1, 2)
        features, _ = self.lstm(seasons.flatten(2))
        found: Tensor = self.fc(features[:, -1])
        return found.unflatten(1, (self.num_targets, self.horizon))


def _zero(layer: nn.Linear) -> nn.Linear:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    return layer
