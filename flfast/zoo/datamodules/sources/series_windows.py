"""Windows of series for forecasting: views of one array, split by time, scaled by client."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.examples import Examples
from flfast.datamodules.number_range import as_float32, scale_of
from flfast.datamodules.sources.source import DataSource
from flfast.state.options import BelowOne, Count


@dataclass(frozen=True, kw_only=True)
class WindowSource(DataSource):
    """Options of series: how they are cut. L, H, and the rest in steps.

    Attributes:
        window: past steps that the model reads, L.
        horizon: steps that it predicts, H.
        stride: steps between the beginnings of windows.
        season: steps of a season, of the naive forecast that MASE divides by; 1: the last value.
        test_fraction: share of each series' last steps for testing.
        loss: of scaled values.
    """

    window: Count
    horizon: Count
    stride: Count
    season: Count
    test_fraction: BelowOne
    loss: Literal["mse", "mae"]

    def check(self, name: str, steps: int) -> int:
        """The number of steps for testing of a series.

        Raises:
            ValueError: if a part has no window, or the training part has no season before it.
        """
        test = math.floor(self.test_fraction * steps + 0.5)
        for part, length in (("training", steps - test), ("testing", test)):
            if length < self.window + self.horizon and (test or part == "training"):
                raise ValueError(
                    f"series {name} has {steps} steps, {length} of them for {part}; allowed: at "
                    f"least data.window + data.horizon = {self.window + self.horizon} of each"
                )
        if steps - test <= self.season:
            raise ValueError(
                f"data.season={self.season}: series {name} has {steps - test} steps for training; "
                "allowed: fewer, such as 1"
            )
        return test

    def steps_of(self, windows: np.ndarray, steps: int) -> np.ndarray:
        """Which of a part's steps lie in these windows of it, or between them, bool [steps].

        All steps if these are all windows, or none.
        """
        starts, span = windows * self.stride, self.window + self.horizon
        change = np.zeros(steps + 1, dtype=np.int64)
        np.add.at(change, starts, 1)
        np.add.at(change, np.minimum(starts + max(span, self.stride), steps), -1)
        used: np.ndarray = change[:-1].cumsum() > 0
        return used | (len(windows) in {0, (steps - span) // self.stride + 1})


def naive_error(values: np.ndarray, season: int, used: np.ndarray) -> np.ndarray:
    """Mean absolute error [C] of forecasting values [T, C] by those of one season before.

    Only steps that are `used`, bool [T], are forecast, and from such; NaN if there are none.
    """
    pairs = used[season:] & used[:-season]
    found: np.ndarray = np.abs(values[season:] - values[:-season])[pairs]
    return found.mean(axis=0) if len(found) else np.full(values.shape[1], np.nan)


def windows_of(
    series: Sequence[np.ndarray],
    names: Sequence[str],
    columns: Sequence[str],
    train: np.ndarray | None = None,
    *,
    num_targets: int,
    cut: WindowSource,
) -> Examples:
    """The windows of a series float64 [T, X] of each client, of which the first C are predicted.

    Each client's values are scaled by mean and standard deviation of the steps in its windows
    `train`, int64 [M], ascending; if it has none there, of its training part. A window and its
    future lie in one part. Inputs [N, X, L] are views of one array of all series.

    Raises:
        ValueError: if a series is too short, or a column is constant in its training part.
    """
    train, num = np.zeros(0, np.int64) if train is None else np.sort(train), 0
    rows: dict[str, list[np.ndarray]] = {
        k: [] for k in ("array", "facts", "test", "owner", "unused")
    }
    for client, (name, values) in enumerate(zip(names, series, strict=True)):
        length = len(values) - cut.check(name, len(values))
        bounds = np.searchsorted(train, [num, num - (-length // cut.stride)])
        used = cut.steps_of(train[slice(*bounds)] - num, length)
        mean, std, naive = _scale(values[:length], used, cut.season, num_targets, name, columns)
        facts = np.stack([mean[:num_targets], std[:num_targets], naive / std[:num_targets]])
        scaled = as_float32(f"series {name}", (values - mean) / std)
        for is_test, part in ((False, scaled[:length]), (True, scaled[length:])):
            starts = np.arange(0, len(part), cut.stride)
            padding = np.zeros((len(starts) * cut.stride - len(part), part.shape[1]), np.float32)
            rows["array"] += [part, padding]
            rows["facts"].append(np.broadcast_to(facts, (len(starts), *facts.shape)))
            rows["test"].append(np.full(len(starts), is_test))
            rows["owner"].append(np.full(len(starts), client))
            rows["unused"].append(starts + cut.window + cut.horizon > len(part))
            num += len(starts)
    needed = 4 * num * (cut.horizon + 3) * num_targets
    require_memory(needed, f"targets of {num:,} windows of data.horizon={cut.horizon}")
    end = np.zeros((cut.window + cut.horizon, len(columns)), np.float32)
    array = torch.from_numpy(np.concatenate([*rows["array"], end]))
    future = array[cut.window :, :num_targets].unfold(0, cut.horizon, cut.stride)[:num]
    known = torch.from_numpy(as_float32("data", np.concatenate(rows["facts"])))
    return Examples(
        inputs=array.unfold(0, cut.window, cut.stride)[:num],
        targets=torch.cat([future.transpose(1, 2), known], dim=1),
        num_classes=cut.horizon * num_targets,
        is_test=np.concatenate(rows["test"]),
        owner=np.concatenate(rows["owner"]),
        task="forecasting",
        input_names=tuple(columns),
        client_names=tuple(names),
        unused=np.concatenate(rows["unused"]),
        stride=cut.stride,
        objective=cut.loss,
        rescaled=partial(windows_of, series, names, columns, num_targets=num_targets, cut=cut),
    )


def _scale(
    values: np.ndarray,
    used: np.ndarray,
    season: int,
    num_targets: int,
    name: str,
    columns: Sequence[str],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and standard deviation [X] of used steps of a training part, and the naive errors [C].

    Raises:
        ValueError: if a column to predict is constant, or its naive error is zero.
    """
    training = values[used]
    mean, std, flat = scale_of(training)
    naive = naive_error(values[:, :num_targets], season, used)
    flat[:num_targets] |= ~(naive > 1e-12 * np.abs(training).max(axis=0)[:num_targets])
    if flat[:num_targets].any():
        raise ValueError(
            f"series {name}: column {columns[int(flat.argmax())]} is constant in training, or "
            f"repeats itself every data.season={season} steps or has none so far apart, so MASE "
            "would divide by zero; leave it out"
        )
    return mean, std, naive
