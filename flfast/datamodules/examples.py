"""`Examples`: a whole dataset, loaded once; clients are index arrays into it."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from flfast.datamodules.transforms import BatchTransform


@dataclass(frozen=True)
class Examples:
    """A dataset, as returned by a data source. N all examples, C classes.

    Attributes:
        inputs: tensor [N, ...] in memory (uint8 for images), or a map-style `Dataset` of input
            tensors if they do not fit in memory.
        targets: int64 [N], in [0, C).
        num_classes: C.
        input_shape: shape of one input, without the batch dimension.
        transform: normalisation and augmentation of batches, on their device.
        is_test: members of the dataset's test set, bool [N]; None if it has no test set.
        owner: the dataset's own client of every example, int64 [N]; -1 for test examples of no
            client; None if it has no clients.
    """

    inputs: Tensor | Dataset[Tensor]
    targets: Tensor
    num_classes: int
    input_shape: tuple[int, ...]
    transform: BatchTransform
    is_test: np.ndarray | None = None
    owner: np.ndarray | None = None

    def __post_init__(self) -> None:
        num = len(self.targets)
        labels = self.targets
        if not num:
            raise ValueError("the dataset is empty")
        if int(labels.min()) < 0 or int(labels.max()) >= self.num_classes:
            raise ValueError(
                f"labels must lie in [0, {self.num_classes}), "
                f"got {int(labels.min())} to {int(labels.max())}"
            )
        if isinstance(self.inputs, Tensor) and self.inputs.is_floating_point():
            _check_finite(self.inputs)
        for name in ("inputs", "is_test", "owner"):
            value = getattr(self, name)
            if value is not None and len(value) != num:
                raise ValueError(f"{name} has {len(value)} entries, targets have {num}")


def _check_finite(inputs: Tensor) -> None:
    if not inputs.numel() or all(bound.isfinite() for bound in inputs.aminmax()):
        return
    broken = ~inputs.flatten(start_dim=1).isfinite().all(dim=1)  # [N]
    raise ValueError(
        f"inputs of {int(broken.sum())} examples contain NaN or infinity; the first is example "
        f"{int(broken.nonzero()[0])}"
    )
