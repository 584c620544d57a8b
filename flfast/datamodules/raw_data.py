"""Examples without targets, for a model that is trained."""

import numpy as np
import torch

from flfast.datamodules.examples import ClientIndices, Examples
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.fetching import Loading
from flfast.datamodules.partitions.whole import whole
from flfast.datamodules.preprocessing import Preprocessing
from flfast.datamodules.sources.source import RawInputs
from flfast.datamodules.splits import Split
from flfast.datamodules.transforms import BatchTransform


class RawData(FederatedDataModule):
    """Inputs that one client has, with targets that mean nothing."""

    def __init__(self, raw: RawInputs, kept: Preprocessing, loading: Loading) -> None:
        examples = _examples(raw, kept)
        split = Split(val=0.0, test=0.0)
        super().__init__(lambda: examples, whole, seed=0, split=split, loading=loading)
        num = len(examples.targets)
        everything = ClientIndices(np.arange(num), np.array([0, num]))
        nothing = ClientIndices(np.zeros(0, np.int64), np.zeros(2, np.int64))
        self.splits = {"train": everything, "val": nothing, "test": nothing}
        self.train_clients = everything
        self._set_examples(examples)

    def setup(self, stage: str | None = None) -> None:
        """All is ready."""


def _examples(raw: RawInputs, kept: Preprocessing) -> Examples:
    task, num, outputs = kept.task, len(raw.about["row"]), kept.num_outputs
    shapes = {"classification": (num,), "survival": (num, 2)}
    dtype = torch.int64 if task == "classification" else torch.float32
    if not num:
        raise ValueError("there is no example to predict")
    columns, shape = kept.columns, tuple(raw.inputs[0].shape)
    if shape != kept.input_shape:
        raise ValueError(
            f"inputs have shape {[*shape]}; allowed: {[*kept.input_shape]}, as in training"
        )
    return Examples(
        inputs=raw.inputs,
        targets=torch.zeros(shapes.get(task, (num, outputs)), dtype=dtype),
        num_classes=outputs,
        transform=BatchTransform(mean=kept.mean, std=kept.deviation),
        task=task,
        categories=() if columns is None else tuple(map(len, columns.categories.values())),
        class_names=kept.classes,
        columns=columns,
        vocabulary=kept.vocabulary,
    )
