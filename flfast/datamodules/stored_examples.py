"""The examples of a population in memory, for those who read them on a device."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.batches import Fetch
from flfast.datamodules.examples import Examples
from flfast.datamodules.samples import StackedSamples
from flfast.state.precision import has_room, to_device


class StoredExamples:
    """All examples as they are stored in memory; kept on a GPU if they fit beside the model."""

    def __init__(self, examples: Examples) -> None:
        self._examples = examples
        self._copies: dict[torch.device, tuple[Tensor | StackedSamples, Tensor]] = {}

    def on_device(self, device: torch.device) -> tuple[Tensor | StackedSamples, Tensor]:
        """Inputs and targets [N, ...], on the device if they fit, otherwise on the CPU."""
        if device not in self._copies:
            inputs, targets = self._examples.inputs, self._examples.targets
            assert isinstance(inputs, Tensor | StackedSamples)
            if has_room(inputs.nbytes + targets.nbytes, device):
                inputs, targets = inputs.to(device), targets.to(device)
            self._copies[device] = inputs, targets
        return self._copies[device]

    def fetch(self, device: torch.device) -> Fetch | None:
        """Reads batches on a GPU; None where training has not put the examples."""
        inputs, targets = self._copies.get(device, (None, None))
        if inputs is None or targets is None or targets.is_cpu:
            return None

        def fetch(batches: Sequence[np.ndarray]) -> Iterator[tuple[Tensor, Tensor]]:
            for indices in batches:
                index = to_device(indices, device)
                yield inputs.index_select(0, index), targets.index_select(0, index)

        return fetch
