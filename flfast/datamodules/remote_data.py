"""The data of a server whose clients are real: how many examples each has, but none of them."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from flfast.datamodules.examples import ClientIndices, Examples
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.samples import SampleTransform, StackedSamples
from flfast.datamodules.transforms import AS_STORED
from flfast.tasks.names import TaskName

SPLITS = ("train", "val", "test")


class Schema(NamedTuple):
    """What examples look like; the same at every client of a deployment.

    Attributes:
        task: the learning task.
        num_classes: outputs of the model.
        input_shape: shape of one input.
        input_dtype: data type of inputs, such as `uint8`.
        target_shape: shape of one target.
        target_dtype: data type of targets.
        categories: number of categories of the last columns of a table.
        names: hash of the names of columns, categories, classes and tokens, in their order.
        samples: of `task=module`, a batch with text such as `float32 3 8` in place of tensors:
            data type and shape of a row. Nodes have tried the module with their own samples, so
            these may differ, and the other attributes say nothing.
    """

    task: TaskName
    num_classes: int
    input_shape: tuple[int, ...]
    input_dtype: str
    target_shape: tuple[int, ...]
    target_dtype: str
    categories: tuple[int, ...]
    names: str
    samples: Any = None


def schema_of(examples: Examples) -> Schema:
    """The schema of some examples.

    Raises:
        ValueError: if batches of a user's own samples are more than rows of tensors.
    """
    if examples.task == "module":
        return Schema("module", 1, (), "float32", (), "int64", (), "", _look_of(examples))
    first = examples.inputs[0]
    names = [examples.input_names, examples.class_names, examples.vocabulary or ()]
    return Schema(
        examples.task,
        examples.num_classes,
        tuple(examples.input_shape),
        str(first.dtype).removeprefix("torch."),
        tuple(examples.targets.shape[1:]),
        str(examples.targets.dtype).removeprefix("torch."),
        tuple(examples.categories),
        hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16],
    )


def _look_of(examples: Examples) -> Any:
    samples: Any = examples.inputs
    batch = examples.transform(samples.collate([samples[0]] * 2), dtype=torch.float32)

    def look(leaf: Any) -> str | None:
        if leaf is None:
            return None
        if not isinstance(leaf, Tensor) or not leaf.ndim or len(leaf) != 2:
            raise ValueError(
                f"task=module: a batch has a {type(leaf).__name__}, and the server tries modules "
                f"with made-up samples; allowed: tensors with a row for each sample"
            )
        return " ".join(map(str, (str(leaf.dtype).removeprefix("torch."), *leaf.shape[1:])))

    return tree_map(look, batch)


def ones_like(look: Any, num: int) -> Any:
    """A batch of `num` made-up samples, as `Schema.samples` describes it, without memory.

    Raises:
        ValueError: if it describes none.
    """

    def ones(leaf: str | None) -> Tensor | None:
        if leaf is None:
            return None
        dtype, *shape = leaf.split()
        return torch.ones(1, dtype=getattr(torch, dtype)).expand(num, *map(int, shape))

    try:
        return tree_map(ones, look)
    except (TypeError, ValueError, AttributeError, RuntimeError, RecursionError) as error:
        raise ValueError(f"samples: {type(error).__name__}") from error


class MadeUpExamples(Examples):
    """Examples whose targets say nothing."""

    @property
    def classes(self) -> None:
        """Unknown."""


class RemoteData(FederatedDataModule):
    """Examples that are not here: their sizes are true, and inputs are zeros without memory.

    Samples of a user's module are ones: such lengths, masks and classes are mostly possible.

    `sizes` are numbers of examples, int64 [K], by name of `SPLITS`. `settings` are further
    arguments of `FederatedDataModule`.
    """

    def __init__(self, schema: Schema, sizes: Mapping[str, np.ndarray], **settings: Any) -> None:
        # It is not divided: the clients of a deployment have their examples.
        super().__init__(self._made_up, lambda: np.zeros(0, np.int64), **settings)
        self._schema, self._sizes = schema, sizes

    def setup(self, stage: str | None = None) -> None:
        """See `FederatedDataModule`."""
        if self._fetch is not None:
            return
        self._set_examples(self._made_up())
        self.splits, start = {}, 0
        for name in SPLITS:
            offsets = np.concatenate([[0], np.cumsum(self._sizes[name])])
            self.splits[name] = ClientIndices(np.arange(start, start + offsets[-1]), offsets)
            start += offsets[-1]
        self.drawn, self.digest = {}, ""
        self.train_clients = self.splits["train"]
        self.owner = self.train_clients.owner()
        self._hold_out()

    def _made_up(self) -> Examples:
        schema = self._schema
        num = int(sum(sizes.sum() for sizes in self._sizes.values()))
        bound = {"classification": schema.num_classes, "language": schema.num_classes}
        numbers = torch.arange(num) % bound.get(schema.task, 2)
        numbers += schema.task == "forecasting"  # a standard deviation is not 0
        numbers = numbers.to(getattr(torch, schema.target_dtype))
        one = torch.zeros((1, *schema.input_shape), dtype=getattr(torch, schema.input_dtype))
        inputs: Any = one.expand(num, *schema.input_shape)
        transform = AS_STORED
        if schema.task == "module":
            inputs, transform = StackedSamples(ones_like(schema.samples, num)), SampleTransform()
        return MadeUpExamples(
            inputs=inputs,
            transform=transform,
            targets=numbers.view(num, *(1 for _ in schema.target_shape)).expand(
                num, *schema.target_shape
            ),
            num_classes=schema.num_classes,
            input_shape=schema.input_shape,
            task=schema.task,
            categories=schema.categories,
        )
