"""Examples: a whole dataset, loaded once, that clients index into."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from flfast.datamodules.transforms import BatchTransform


@dataclass(frozen=True)
class Examples:
    """What a data source returns. N all examples, C classes.

    Attributes:
        inputs: [N, ...] tensor in memory (uint8 for images), or a map-style `Dataset` of input
            tensors where the data do not fit.
        targets: int64 [N], in [0, C).
        num_classes: C.
        input_shape: shape of one input, without the batch dimension.
        transform: batched, run on the device: normalisation and augmentation.
        is_test: bool [N], the data's own test set; None where it has none.
        owner: int64 [N], the data's own client of every example; None where it names none.
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
        f"inputs of {int(broken.sum())} examples hold NaN or infinity, the first of them is "
        f"example {int(broken.nonzero()[0])}"
    )
