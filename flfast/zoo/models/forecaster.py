"""Forecasters: a linear map or LSTM layers, which correct the seasonal naive forecast.

The correction begins as zero, so before training they are the seasonal naive forecast.
Zeng, Chen, Zhang, Xu: Are Transformers Effective for Time Series Forecasting? AAAI 2023, which
subtracts the last value from windows, as `season=1` does here.
"""

from torch import Tensor, nn

from flfast.state.options import Count


class Forecaster(nn.Module):
    """Windows [B, X, L] -> forecasts [B, H * C] of the first C channels, step by step.

    Without `hidden` units, the correction is a linear map of the window, the same for these
    channels. Else LSTM layers read the window season by season, all channels at once.
    """

    def __init__(
        self,
        *,
        input_shape: tuple[int, ...],
        num_classes: int,
        horizon: int,
        season: Count,
        hidden: Count | None,
        layers: Count,
    ) -> None:
        super().__init__()
        if not horizon or len(input_shape) != 2:
            raise ValueError(
                "a forecaster needs windows of task=forecasting, such as data=series; the data "
                f"have shape {list(input_shape)}; allowed: another model"
            )
        channels, window = input_shape
        if season > window:
            raise ValueError(
                f"model.season={season} exceeds data.window={window}; allowed: 1 to {window}"
            )
        self.season, self.horizon, self.num_targets = season, horizon, num_classes // horizon
        self.lstm = None
        if hidden is not None:
            self.lstm = nn.LSTM(channels * season, hidden, num_layers=layers, batch_first=True)
        sizes = (window, horizon) if hidden is None else (hidden, num_classes)
        self.fc = nn.Linear(*sizes)
        nn.init.zeros_(self.fc.weight)
        nn.init.zeros_(self.fc.bias)

    def forward(self, windows: Tensor) -> Tensor:
        """Forecasts; the layers see windows relative to each channel's mean over a season."""
        last = windows[:, :, -self.season :]
        repeats = -(-self.horizon // self.season)
        naive = last[:, : self.num_targets].repeat(1, 1, repeats)[:, :, : self.horizon]
        relative = windows - last.mean(dim=2, keepdim=True)
        if self.lstm is None:
            change = self.fc(relative[:, : self.num_targets])
        else:
            whole = relative[:, :, windows.shape[2] % self.season :]
            seasons = whole.unflatten(2, (-1, self.season)).transpose(1, 2).flatten(2)
            change = self.fc(self.lstm(seasons)[0][:, -1]).view(naive.shape)
        found: Tensor = (naive + change).transpose(1, 2).flatten(1)
        return found
