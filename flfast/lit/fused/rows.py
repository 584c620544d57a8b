"""Examples made ready for many local steps at once."""

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.federated import ClientDataModule


class Rows:
    """Reads examples from memory as the model takes them.

    Args:
        dtype: of the model.
        device: of the model.
    """

    def __init__(self, *, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._examples: tuple[Tensor, Tensor] | None = None

    def ready(self, order: np.ndarray, data: ClientDataModule, padding: int = 0) -> list[Tensor]:
        """Inputs [M, ...] and targets [M] of a client's examples, augmented.

        Args:
            order: numbers of examples, of which M - padding.
            data: the client's.
            padding: rows to add behind, with any example's values.
        """
        stored, targets = self._stored(data)
        index = torch.from_numpy(order).to(stored.device)
        inputs = stored.index_select(0, index).to(self._device)
        inputs = data.augmented(inputs, dtype=self._dtype)
        targets = targets.index_select(0, index).to(self._device)
        if padding:
            inputs = torch.cat([inputs, inputs[:1].expand(padding, *inputs.shape[1:])])
            targets = torch.cat([targets, targets[:1].expand(padding)])
        return [inputs, targets]

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
        parts = [
            self.ready(index[:, place][real[:, place]], own) for place, own in enumerate(clients)
        ]
        made = []
        for row in zip(*parts, strict=True):
            found = row[0].new_zeros((*shape, *row[0].shape[1:]))
            for place, own in enumerate(row):
                chosen = torch.from_numpy(real[:, place]).to(found.device)
                found[:, place][chosen] = own
            made.append(found)
        return made

    def _stored(self, data: ClientDataModule) -> tuple[Tensor, Tensor]:
        """All examples as they are stored, on the device where they fit beside the model."""
        if self._examples is None:
            examples = data.data.examples
            assert isinstance(examples.inputs, Tensor)
            inputs, targets = examples.inputs, examples.targets
            if self._device.type == "cuda":
                free, _ = torch.cuda.mem_get_info(self._device)
                if inputs.nbytes + targets.nbytes < free / 2:
                    inputs, targets = inputs.to(self._device), targets.to(self._device)
            self._examples = inputs, targets
        return self._examples
