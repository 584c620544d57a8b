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
    """A model behind the scales of a table's columns, and before those of its targets.

    Attributes:
        mean, deviation: of the inputs [D], float64; 0 and 1 of codes of categories.
        target_mean, target_deviation: of the outputs [C]; 0 and 1 if they are no scaled numbers.
    """

    mean: Tensor
    deviation: Tensor
    target_mean: Tensor
    target_deviation: Tensor

    def __init__(self, model: nn.Module, columns: TableColumns, client: str | None) -> None:
        super().__init__()
        self.model = model
        numeric = columns.clients.get(client or "", columns.numeric)
        inputs = [
            *(numeric[name] for name in columns.numeric),
            *([None] * len(columns.categories)),
        ]
        targets = [*columns.targets.values()]
        if not any(targets):
            targets = [None]
        for prefix, scales in (("", inputs), ("target_", targets)):
            known = [scale or ColumnScale(mean=0.0, deviation=1.0) for scale in scales]
            for name in ("mean", "deviation"):
                values = [getattr(scale, name) for scale in known]
                self.register_buffer(prefix + name, torch.tensor(values, dtype=torch.float64))

    def raw(self, inputs: Tensor) -> Tensor:
        """Raw rows float64 [B, D], as a file has them, of inputs as a model reads them."""
        return inputs.double() * self.deviation + self.mean

    def in_units(self, outputs: Tensor) -> Tensor:
        """Outputs in the unit of the targets."""
        return outputs * self.target_deviation.to(outputs) + self.target_mean.to(outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Outputs [B, C] of raw rows float64 [B, D]."""
        return self.in_units(self.model(((rows - self.mean) / self.deviation).float()))
