"""A workload: a federation of fixed sizes, said once, for flfast and for the plain loop.

Torch-free. `flfast_overrides` says a workload in the command line's words; `benchmarks.plain`
reads the same fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

SHRINK = 20  # divides a workload under --quick
CONVOLUTIONAL = {"cnn", "lenet", "pfl_cnn"}
AUGMENTED = {"random_crop": 4, "random_flip": True}  # options of augmented images


@dataclass(frozen=True)
class Workload:
    """A federation to time. K clients.

    Attributes:
        name: on the command line and in results.
        title: one line for people.
        model: option of the group `model`, of `conf/` or `benchmarks/conf/`.
        train_sizes: training examples of each client; one number is that of every client.
        test_sizes: test examples of each client; one number is the size of a central test set.
        lr: of SGD.
        rounds: measured rounds of a process, after a warm-up round.
        shape: of one input.
        num_clients: K.
        cohort: clients that train in a round.
        batch_size: of a local step; -1 is all of a client's examples.
        micro_batch: most examples in memory at once on a CPU; null is the whole step.
        last_batch: `keep` or `drop`, of an epoch.
        local_epochs: passes over a client's examples in a round.
        momentum, weight_decay: of SGD, which begins anew with every client and round.
        images: whether inputs are 8-bit images, normalised when they are read.
        augmented: whether such images are cropped and mirrored at random in training.
        root: folder of a PFLlib dataset; null is random images of the same sizes.
        contenders: to run where the command line names none; none is the usual ones.
    """

    name: str
    title: str
    model: str
    train_sizes: int | tuple[int, ...]
    test_sizes: int | tuple[int, ...]
    lr: float
    rounds: int
    shape: tuple[int, ...] = (1, 28, 28)
    num_clients: int = 20
    cohort: int = 20
    batch_size: int = 10
    micro_batch: int | None = None
    last_batch: str = "keep"
    local_epochs: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0
    images: bool = False
    augmented: bool = False
    root: str | None = None
    contenders: tuple[str, ...] = ()

    @property
    def uneven(self) -> bool:
        """Whether clients differ in size."""
        return not isinstance(self.train_sizes, int)

    @property
    def num_train(self) -> int:
        """Training examples of the population."""
        return _total(self.train_sizes, self.num_clients)

    @property
    def num_test(self) -> int:
        """Test examples, which one evaluation predicts."""
        return _total(self.test_sizes, 1)

    @property
    def input_size(self) -> int:
        """Numbers of one input."""
        return math.prod(self.shape)

    @property
    def data_bytes(self) -> int:
        """Of inputs, float32 or 8-bit, and labels in int64."""
        width = 1 if self.images else 4
        return (self.num_train + self.num_test) * (width * self.input_size + 8)

    @property
    def convolves(self) -> bool:
        """Whether its model has convolutions."""
        return self.model in CONVOLUTIONAL

    @property
    def samples(self) -> int:
        """Examples that the cohort trains on in a round, every pass counted."""
        return self.local_epochs * sum(self.used(n) for n in self._cohort_sizes())

    @property
    def steps(self) -> int:
        """Local steps of the cohort in a round."""
        return self.local_epochs * sum(
            1 if self.batch_size < 0 else math.ceil(self.used(n) / self.batch_size)
            for n in self._cohort_sizes()
        )

    def used(self, num_examples: int) -> int:
        """Examples of one pass of a client that has `num_examples`."""
        if self.last_batch == "keep" or self.batch_size < 0 or num_examples < self.batch_size:
            return num_examples
        return num_examples - num_examples % self.batch_size

    def flfast_overrides(self, *, device: str, rounds: int) -> list[str]:
        """The workload as overrides of `python -m flfast.train`.

        Args:
            device: `cpu` or `cuda`.
            rounds: of the run, warm-up included.
        """
        micro = "null" if device == "cuda" else self.micro_batch or "null"
        return [
            *self._data_overrides(),
            f"model={self.model}",
            f"optimizer.lr={self.lr}",
            f"optimizer.momentum={self.momentum}",
            f"optimizer.weight_decay={self.weight_decay}",
            f"rounds={rounds}",
            f"sampler.count={self.cohort}",
            f"batch_size={self.batch_size}",
            f"micro_batch={micro}",
            f"last_batch={self.last_batch}",
            f"local_epochs={self.local_epochs}",
            "split.val=0.0",
            "split.test=0.0",
            "optimized_metric=train/loss",
            f"trainer.accelerator={'gpu' if device == 'cuda' else 'cpu'}",
        ]

    def _data_overrides(self) -> list[str]:
        if self.root is not None:
            return ["data=pfllib", f"data.root={self.root}", "partition=natural"]
        shape = f"data.shape={_listed(self.shape)}"
        if not isinstance(self.train_sizes, int):
            assert not isinstance(self.test_sizes, int)
            return [
                "data=uneven",
                shape,
                f"data.train_sizes={_listed(self.train_sizes)}",
                f"data.test_sizes={_listed(self.test_sizes)}",
                "partition=natural",
            ]
        # An IID partition leaves the test set central: evaluation is the same for any population.
        return [
            f"data={'images' if self.images else 'synthetic'}",
            *(
                (f"data.{k}={json.dumps(v)}" for k, v in AUGMENTED.items())
                if self.augmented
                else ()
            ),
            shape,
            f"data.num_examples={self.num_train}",
            f"data.num_test={self.num_test}",
            f"data.num_clients={self.num_clients}",
            "partition=iid",
            f"partition.num_clients={self.num_clients}",
            "partition.min_samples=1",
        ]

    def _cohort_sizes(self) -> Sequence[int]:
        if isinstance(self.train_sizes, int):
            return [self.train_sizes] * self.cohort
        assert self.cohort == self.num_clients, "which clients train would matter"
        return self.train_sizes

    def shrunk(self) -> Workload:
        """A twentieth of the work: of clients, or of examples where clients differ or are few."""
        name, title = f"{self.name}-quick", f"a twentieth of: {self.title}"
        small = replace(self, name=name, title=title, rounds=1, root=None)
        if isinstance(self.train_sizes, int):
            if self.num_clients < 2 * SHRINK:
                return replace(small, train_sizes=self.train_sizes // SHRINK, test_sizes=100)
            num_clients = self.num_clients // SHRINK
            cohort = min(self.cohort, num_clients // 2)
            return replace(small, num_clients=num_clients, cohort=cohort, test_sizes=100)
        return replace(
            small,
            train_sizes=tuple(n // SHRINK for n in self.train_sizes),
            test_sizes=tuple(n // SHRINK for n in _each(self.test_sizes)),
        )


def _total(sizes: int | tuple[int, ...], times: int) -> int:
    return sizes * times if isinstance(sizes, int) else sum(sizes)


def _each(sizes: int | tuple[int, ...]) -> tuple[int, ...]:
    return (sizes,) if isinstance(sizes, int) else sizes


def _listed(numbers: Sequence[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"
