"""Reads the examples of many local steps at once, as rows that the steps then index.

It stands between the schedules (`step_schedule.py`, `stack_schedule.py`), which say which rows
come next, and the bound steps of `graph/programs.py`, which read them. A random row costs the same
wherever it is read, so rows are gathered in one call instead of one call per step.
"""

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.client_data import ClientDataModule
from flfast.datamodules.samples import StackedSamples, flatten, moved
from flfast.datamodules.stored_examples import StoredExamples
from flfast.engines.fused.graph.local_step import LEAF
from flfast.engines.fused.graph.programs import BoundStep
from flfast.state.precision import to_device
from flfast.state.tree import Tree


class ExampleReader:
    """Reads examples from memory in the data type and on the device of the model."""

    def __init__(
        self, stored: StoredExamples, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._stored, self._dtype, self._device = stored, dtype, device

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the rows: of samples, one for each tensor of a sample."""
        inputs, _ = self._stored.on_device(self._device)
        if isinstance(inputs, StackedSamples):
            return *(f"{LEAF}{place}" for place in range(len(inputs.leaves))), "targets"
        return "inputs", "targets"

    def read(self, order: np.ndarray, data: ClientDataModule, padding: int = 0) -> list[Tensor]:
        """Inputs [M, ...] and targets [M, ...] of a client's examples, augmented; see `names`.

        `order` has the indices of M - padding examples; the values of the padding do not matter.
        """
        stored, _ = self._stored.on_device(self._device)
        index = to_device(order, stored.device)
        batch = stored.index_select(0, index)
        if stored.device != self._device:
            batch = moved(batch, self._device)
        batch = data.augmented(batch, dtype=self._dtype)
        rows = [batch] if isinstance(stored, Tensor) else flatten(batch)[0]
        if padding:
            rows = [torch.cat([row, row[:1].expand(padding, *row.shape[1:])]) for row in rows]
        return [*rows, self.targets(order, padding)]

    def targets(self, order: np.ndarray, padding: int = 0) -> Tensor:
        """Targets [M, ...] only; see `read`."""
        _, stored = self._stored.on_device(self._device)
        index = to_device(order, stored.device)
        targets = stored.index_select(0, index).to(self._device)
        if not padding:
            return targets
        return torch.cat([targets, targets[:1].expand(padding, *targets.shape[1:])])

    def read_stack(
        self, index: np.ndarray, real: np.ndarray, clients: list[ClientDataModule]
    ) -> list[Tensor]:
        """Inputs and targets [T * S * B, ...] of the steps of several clients.

        Args:
            index: indices of examples, int64 [T, S, B]; any index where it is padding.
            real: False where it is padding, bool [T, S, B]. Padding is not augmented, because
                that would advance the client's generator.
            clients: S of them.
        """
        if not clients[0].data.examples.transform.augments:
            return self.read(index.reshape(-1), clients[0])
        parts, start = [], 0
        places = np.zeros(index.shape, dtype=np.int64)  # positions in the concatenated parts
        for column, client in enumerate(clients):
            parts.append(self.read(index[:, column][real[:, column]], client))
            num = len(parts[-1][-1])
            places[:, column][real[:, column]] = np.arange(start, start + num)
            start += num
        chosen = to_device(places.reshape(-1), self._device)
        joined = map(torch.cat, zip(*parts, strict=True))
        return [row.index_select(0, chosen) for row in joined]


class ExampleRows:
    """The rows of a client's examples, and steps over them."""

    def __init__(self, reader: ExampleReader, data: ClientDataModule) -> None:
        self._reader, self._data = reader, data

    def rows(self, order: np.ndarray, padding: int) -> Tree:
        """Rows by name, each [M, ...], of examples by index; values of padding do not matter."""
        return dict(
            zip(self._reader.names, self._reader.read(order, self._data, padding), strict=True)
        )

    def targets(self, order: np.ndarray, padding: int) -> Tree:
        """Rows without inputs."""
        return {"targets": self._reader.targets(order, padding)}

    def step(self, bound: BoundStep, rows: Tree, *, num: int) -> None:
        """Take `num` steps over rows, each [num, B, ...]."""
        bound(rows, num=num)
