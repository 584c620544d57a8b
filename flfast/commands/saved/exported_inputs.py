"""What stands before and behind a model in an exported program, so that it reads raw examples."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flfast.datamodules.preprocessing import ColumnScale, TableColumns


class StoredInputs(nn.Module):
    """A model behind the normalisation of its data, as evaluation normalises them.

    Unlike `BatchTransform`, it can be traced: it changes nothing in place and caches nothing.
    Mean and deviation are one number for all inputs, or one for each channel of images.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, model: nn.Module, mean: Sequence[float] | None, std: Sequence[float] | None
    ) -> None:
        super().__init__()
        self.model = model
        self._normalises = mean is not None and std is not None
        for name, given in (("mean", mean), ("std", std)):
            values = torch.tensor(given or (0.0,))
            self.register_buffer(name, values if len(values) == 1 else values.view(-1, 1, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs [B, ...] of stored inputs [B, ...]."""
        if inputs.dtype == torch.uint8:
            inputs = inputs.to(self.mean.dtype) / 255
        elif inputs.is_floating_point():
            inputs = inputs.to(self.mean.dtype)
        if self._normalises:
            inputs = (inputs - self.mean) / self.std
        outputs: Tensor = self.model(inputs)
        return outputs


class RawRows(nn.Module):
    """A model behind fills and scales of a table's columns, and before the scales of its targets.

    Rows have numbers, NaN where one is missing and training filled it in, then codes of
    categories. D numbers, I indicators.

    Attributes:
        fill, mean, deviation: of numbers [D], float64.
        indicated: which numbers have an indicator, int64 [I].
        target_mean, target_deviation: of the outputs [C]; 0 and 1 if they are no scaled numbers.
    """

    fill: Tensor
    mean: Tensor
    deviation: Tensor
    indicated: Tensor
    target_mean: Tensor
    target_deviation: Tensor

    def __init__(self, model: nn.Module, columns: TableColumns, client: str | None) -> None:
        super().__init__()
        self.model, names = model, [*columns.numeric]
        numeric = columns.clients.get(client or "", columns.numeric)
        targets = [*columns.targets.values()]
        targets = targets if any(targets) else [None]
        for prefix, scales in (("", [numeric[name] for name in names]), ("target_", targets)):
            known = [scale or ColumnScale(mean=0.0, deviation=1.0) for scale in scales]
            for name in ("mean", "deviation"):
                values = [getattr(scale, name) for scale in known]
                self.register_buffer(prefix + name, torch.tensor(values, dtype=torch.float64))
        self._fills = bool(columns.fills)
        fills = [columns.fills.get(name, 0.0) for name in names]
        self.register_buffer("fill", torch.tensor(fills, dtype=torch.float64))
        places = [names.index(name) for name in columns.indicators]
        self.register_buffer("indicated", torch.tensor(places, dtype=torch.int64))

    def raw(self, inputs: Tensor) -> Tensor:
        """Rows float64 [B, D + categories], as a file has them, of inputs as the model reads."""
        num, flags = len(self.mean), len(self.indicated)
        numbers = inputs[:, :num].double() * self.deviation + self.mean
        lacking = torch.zeros_like(numbers)
        lacking[:, self.indicated] = inputs[:, num : num + flags].double()
        numbers = numbers.masked_fill(lacking > 0, torch.nan)
        return torch.cat([numbers, inputs[:, num + flags :].double()], dim=1)

    def in_units(self, outputs: Tensor) -> Tensor:
        """Outputs in the unit of the targets."""
        return outputs * self.target_deviation.to(outputs) + self.target_mean.to(outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Outputs [B, C] of raw rows float64 [B, D + categories]."""
        num = len(self.mean)
        numbers, codes = rows[:, :num], rows[:, num:]
        lacking = numbers.isnan()
        if self._fills:
            numbers = torch.where(lacking, self.fill, numbers)
        scaled = (numbers - self.mean) / self.deviation
        flags = lacking[:, self.indicated].to(rows.dtype)
        return self.in_units(self.model(torch.cat([scaled, flags, codes], dim=1).float()))
