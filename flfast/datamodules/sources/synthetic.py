"""Synthetic data of every task, for any shape and number of clients."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.examples import Examples, check_scores
from flfast.datamodules.sources.source import DataSource
from flfast.state.options import Count, NonNegative, NonNegativeInt
from flfast.state.randomness import generator
from flfast.tasks.task_type import TaskName

_Arrays = tuple[np.ndarray, np.ndarray]


def _clusters(num: int, num_classes: int, size: int, noise: float, seed: int) -> _Arrays:
    """Inputs float32 [num, size] and labels int64 [num]."""
    rng = generator(seed, "synthetic data")
    means = rng.standard_normal((num_classes, size), dtype=np.float32)
    labels = rng.integers(num_classes, size=num)
    inputs = rng.standard_normal((num, size), dtype=np.float32)
    inputs *= np.float32(noise)
    for start in range(0, num, 1024):  # all means at once would take as much memory as inputs
        inputs[start : start + 1024] += means[labels[start : start + 1024]]
    return inputs, labels


def _linear(num: int, num_classes: int, size: int, noise: float, seed: int) -> _Arrays:
    """Inputs float32 [num, size] and targets float32 [num, num_classes]."""
    rng = generator(seed, "synthetic numbers")
    weights = rng.standard_normal((size, num_classes), dtype=np.float32)
    weights /= np.linalg.norm(weights, axis=0)
    inputs = rng.standard_normal((num, size), dtype=np.float32)
    errors = rng.standard_normal((num, num_classes), dtype=np.float32)
    return inputs, inputs @ weights + np.float32(noise) * errors


def _labels(num: int, num_classes: int, size: int, noise: float, seed: int) -> _Arrays:
    """Inputs float32 [num, size] and labels uint8 [num, num_classes]."""
    inputs, targets = _linear(num, num_classes, size, noise, seed)
    return inputs, (targets > 0).astype(np.uint8)


def _times(num: int, num_classes: int, size: int, noise: float, seed: int) -> _Arrays:
    """Inputs float32 [num, size], and float32 [num, 2] times and whether the event was seen."""
    inputs, hazards = _linear(num, num_classes, size, noise, seed)
    drawn = generator(seed, "synthetic times").exponential(size=(num, 2))
    event, censored = drawn[:, 0] / np.exp(hazards[:, 0].astype(np.float64)), drawn[:, 1]
    times = np.stack([np.minimum(event, censored), event <= censored], axis=1)
    return inputs, times.astype(np.float32)


def _chains(num: int, num_classes: int, size: int, noise: float, seed: int) -> _Arrays:
    """Tokens and those behind them, int64 [num, size] each."""
    rng = generator(seed, "synthetic texts")
    usual = rng.permutation(num_classes)  # the token that usually follows each
    texts = rng.integers(num_classes, size=(num, size + 1))
    follows = rng.random((num, size)) < 1 / (1 + noise)
    for place in range(size):
        before = texts[:, place]
        texts[:, place + 1] = np.where(follows[:, place], usual[before], texts[:, place + 1])
    return np.ascontiguousarray(texts[:, :-1]), np.ascontiguousarray(texts[:, 1:])


_DRAW = {
    "classification": _clusters,
    "regression": _linear,
    "multilabel": _labels,
    "language": _chains,
    "survival": _times,
}


@dataclass(frozen=True, kw_only=True)
class Synthetic(DataSource):
    """Inputs [num_examples + num_test, *shape], the last num_test for testing.

    Training example i and test example i belong to client i % num_clients. By task:

    - `classification`: labels are drawn uniformly. An input is the mean of its class, which is
      standard normal, plus Gaussian noise.
    - `regression`: inputs are standard normal. Targets are linear in them, with variance 1, plus
      Gaussian noise.
    - `multilabel`: labels say which targets of such a regression are positive.
    - `survival`: such a target is a log hazard. Times are exponential; so are those of censoring,
      with hazard 1, which about half of the events precede. A null `num_classes` is 1.
    - `language`: inputs are tokens. Each token has one that usually follows it. Any token, drawn
      uniformly, follows instead with probability noise / (1 + noise).
    """

    num_examples: Count
    num_test: NonNegativeInt
    shape: list[Count]
    num_classes: Count | None
    num_clients: Count
    noise: NonNegative
    task: TaskName | None
    seed: int

    def load(self) -> Examples:
        """All examples.

        Raises:
            ValueError: if a client had no training example, the data do not fit in memory, or
                texts have several dimensions.
        """
        task: TaskName = self.task or "classification"
        num_classes = self.num_classes or (1 if task == "survival" else 10)
        self._check(task, num_classes)
        num, size = self.num_examples + self.num_test, math.prod(self.shape)
        inputs, targets = _DRAW[task](num, num_classes, size, self.noise, self.seed)
        position = np.concatenate([np.arange(self.num_examples), np.arange(self.num_test)])
        return Examples(
            inputs=torch.from_numpy(inputs).view(num, *self.shape),
            targets=torch.from_numpy(targets),
            num_classes=num_classes,
            is_test=np.arange(num) >= self.num_examples if self.num_test else None,
            owner=position % self.num_clients,
            task=task,
        )

    def _check(self, task: TaskName, num_classes: int) -> None:
        if task not in _DRAW:
            raise ValueError(
                f"data=synthetic with task={task}; allowed: {', '.join(_DRAW)}, or for "
                "segmentation data=synthetic_shapes"
            )
        if task == "survival" and num_classes != 1:
            raise ValueError(
                f"data.num_classes={num_classes} with task=survival: a model gives one number, "
                "the log hazard; allowed: null or 1"
            )
        if self.num_examples < self.num_clients:
            raise ValueError(
                f"data.num_examples={self.num_examples} data.num_clients={self.num_clients}: each "
                "client needs an example; raise num_examples or lower num_clients"
            )
        if not len(self.shape):
            raise ValueError("data.shape=[] must name at least one dimension, such as [32]")
        num = self.num_examples + self.num_test
        require_memory(
            4 * (num + num_classes) * math.prod(self.shape),
            f"data.num_examples={self.num_examples} data.num_test={self.num_test} "
            f"data.num_classes={num_classes} data.shape={list(self.shape)}",
        )
        if task == "classification":
            check_scores(num_classes, self.num_test)
        if task == "language" and len(self.shape) > 1:
            raise ValueError(
                f"data.shape={list(self.shape)} with task=language must have one dimension, the "
                "tokens of a text, such as [32]"
            )
