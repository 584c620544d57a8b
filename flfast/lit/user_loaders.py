"""The loaders that the Trainer gets for a user's module: a client's, in the user's batches."""

from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import lightning as L
import numpy as np
from torch import nn

from flfast.datamodules.batches import Batch, EvalLoader, TrainLoader
from flfast.datamodules.client_data import ClientDataModule
from flfast.datamodules.federated import FederatedDataModule
from flfast.lit.user_module import UserModule, overrides
from flfast.state.weights import dtype_of_module


class UserLoader:
    """Yields the user's batches, and notes beside them what else a run knows of each."""

    def __init__(
        self,
        loader: TrainLoader | EvalLoader,
        transformed: Callable[[Any], Any],
        facts: deque[Batch] | None = None,
    ) -> None:
        self._loader, self._transformed, self._facts = loader, transformed, facts

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if self._facts is not None:
            self._facts.clear()
        for batch in self._loader:
            if self._facts is not None:
                self._facts.append(batch._replace(inputs=None))
            yield self._transformed(batch.inputs)


def client_loaders(
    data: ClientDataModule, facts: deque[Batch], model: UserModule
) -> L.LightningDataModule:
    """A DataModule of a client's loaders, with the hooks of the user's own DataModule.

    Inputs get the module's data type; `facts` gets what else a run knows of batches. Validation
    examples are there for a module that has a step for them.
    """
    dtype = dtype_of_module(model)
    own: Any = data.data.examples.datamodule
    found: Any = L.LightningDataModule() if own is None else copy(own)
    if own is not None:  # the run called two of them when it read the data, and the others never
        for name in ("prepare_data", "setup", "teardown", "on_exception"):
            setattr(found, name, lambda *_, **__: None)
    train = UserLoader(data.train_dataloader(), lambda b: data.augmented(b, dtype=dtype), facts)
    plain = data.data.examples.transform
    val = UserLoader(data.val_dataloader(), lambda b: plain(b, dtype=dtype))
    found.train_dataloader = lambda: train
    none = L.LightningDataModule().val_dataloader
    found.val_dataloader = (lambda: val) if overrides(model, "validation_step") else none
    return found


def evaluation_batches(
    data: FederatedDataModule, indices: np.ndarray, model: nn.Module
) -> Iterator[Batch]:
    """Batches of examples, int64 [M], whose inputs are the user's own batches."""
    dtype = dtype_of_module(model)
    for batch in data.eval_loader(indices):
        yield batch._replace(inputs=data.examples.transform(batch.inputs, dtype=dtype))
