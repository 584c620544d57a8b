"""Rows of examples, read and augmented for many local steps at once."""

from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.federated import ClientDataModule, FederatedDataModule
from flfast.engines.fused.graph.programs import Bound
from flfast.state.transfer import to_device
from flfast.state.tree import Tree

ROWS = ("inputs", "targets")


class Stored:
    """All examples as they are stored, on each device where they fit beside the model.

    Args:
        data: in memory.
    """

    def __init__(self, data: FederatedDataModule) -> None:
        self._examples = data.examples
        self.on = lru_cache(maxsize=None)(self._on)

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs [N, ...] and targets [N], there or on the CPU."""
        inputs, targets = self._examples.inputs, self._examples.targets
        assert isinstance(inputs, Tensor)
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            if inputs.nbytes + targets.nbytes < free / 2:
                inputs, targets = inputs.to(device), targets.to(device)
        return inputs, targets


class Rows:
    """Reads examples from memory as the model takes them.

    Args:
        stored: all of them.
        dtype: of the model.
        device: of the model.
    """

    def __init__(self, stored: Stored, *, dtype: torch.dtype, device: torch.device) -> None:
        self._stored, self._dtype, self._device = stored, dtype, device

    def ready(self, order: np.ndarray, data: ClientDataModule, padding: int = 0) -> list[Tensor]:
        """Inputs [M, ...] and targets [M] of a client's examples, augmented.

        Args:
            order: numbers of examples, of which M - padding.
            data: the client's.
            padding: rows to add behind, with any example's values.
        """
        stored, _ = self._stored.on(self._device)
        index = to_device(order, stored.device)
        inputs = stored.index_select(0, index).to(self._device)
        inputs = data.augmented(inputs, dtype=self._dtype)
        if padding:
            inputs = torch.cat([inputs, inputs[:1].expand(padding, *inputs.shape[1:])])
        return [inputs, self.targets(order, padding)]

    def targets(self, order: np.ndarray, padding: int = 0) -> Tensor:
        """Targets [M] alone; see `ready`."""
        _, stored = self._stored.on(self._device)
        index = to_device(order, stored.device)
        targets = stored.index_select(0, index).to(self._device)
        return torch.cat([targets, targets[:1].expand(padding)]) if padding else targets

    def ready_together(
        self, index: np.ndarray, real: np.ndarray, clients: list[ClientDataModule]
    ) -> list[Tensor]:
        """Inputs and targets [T, S, B, ...] of several clients' steps.

        Args:
            index: numbers of examples, int64 [T, S, B]; any number where it is padding.
            real: which are not padding, bool [T, S, B]; a client's draws are for these only.
            clients: S of them.
        """
        shape = index.shape
        if not clients[0].data.examples.transform.augments:
            rows = self.ready(index.reshape(-1), clients[0])
            return [row.unflatten(0, shape) for row in rows]
        parts, start = [], 0
        places = np.zeros(shape, dtype=np.int64)  # in the parts, client after client
        for place, own in enumerate(clients):
            parts.append(self.ready(index[:, place][real[:, place]], own))
            num = len(parts[-1][1])
            places[:, place][real[:, place]] = np.arange(start, start + num)
            start += num
        chosen = to_device(places.reshape(-1), self._device)
        joined = map(torch.cat, zip(*parts, strict=True))
        return [row.index_select(0, chosen).unflatten(0, shape) for row in joined]


class Feed(Protocol):
    """Rows of a client's examples, and steps over them."""

    def rows(self, order: np.ndarray, padding: int) -> Tree:
        """Rows by name, each [M, ...].

        Args:
            order: numbers of examples, of which M - padding.
            padding: rows to add behind, with any example's values.
        """

    def step(self, bound: Bound, rows: Tree, *, num: int) -> None:
        """Take `num` steps over rows, each [num, B, ...]."""


class ExampleFeed:
    """The examples themselves; see `Feed`.

    Args:
        rows: reads them.
        data: the client's.
    """

    def __init__(self, rows: Rows, data: ClientDataModule) -> None:
        self._rows, self._data = rows, data

    def rows(self, order: np.ndarray, padding: int) -> Tree:
        """See `Feed`."""
        return dict(zip(ROWS, self._rows.ready(order, self._data, padding), strict=True))

    def targets(self, order: np.ndarray, padding: int) -> Tree:
        """Rows without inputs."""
        return {"targets": self._rows.targets(order, padding)}

    def step(self, bound: Bound, rows: Tree, *, num: int) -> None:
        """See `Feed`."""
        bound(rows, num=num)
