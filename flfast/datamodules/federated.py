"""The LightningDataModule of a population: one dataset, many clients."""

from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor

from flfast.datamodules.backdoor import Backdoor, poisoned
from flfast.datamodules.batches import WHOLE, RankShare
from flfast.datamodules.client_data import ClientDataModule
from flfast.datamodules.examples import ClientIndices, Examples, warn_of_equal_targets
from flfast.datamodules.fetching import Loading
from flfast.datamodules.population import Population
from flfast.datamodules.shifts.applying import shift_examples
from flfast.datamodules.shifts.shift import NO_SHIFT, Affected, Shift
from flfast.datamodules.sources.source import examples_from
from flfast.datamodules.splits import Split, split_examples, val_set
from flfast.state.plan import Batching


class FederatedDataModule(Population):
    """Loads a dataset once, partitions it, and returns clients by number.

    `Trainer.fit(model, datamodule=module)` trains centrally on all clients' training examples,
    `datamodule=module.client(3)` on those of one client.

    Args:
        source: () -> `Examples`, or a record of options that loads them; gets `seed` if it has
            such a parameter.
        partition: -> owner int64 [N] of the N training examples that the server does not have;
            gets `labels`, `num_examples`, `rng`, `owner` (the dataset's own clients), `inputs`
            and `digest` if it has such parameters.
        seed: seed of partition and splits, >= 0.
        split: how the examples are divided.
        loading: how examples are read.
        shift: how clients' inputs or labels differ beyond the mix of their labels.
    """

    def __init__(
        self,
        source: Callable[..., Examples],
        partition: Callable[..., np.ndarray],
        *,
        seed: int,
        split: Split,
        loading: Loading,
        shift: Shift = NO_SHIFT,
    ) -> None:
        super().__init__(seed=seed, split=split, loading=loading)
        self.source, self.partition, self.shift = source, partition, shift

    def setup(self, stage: str | None = None) -> None:
        """Load, partition and split, once.

        Raises:
            ValueError: if the data are missing or cannot be partitioned as asked.
        """
        if self._fetch is not None:
            return
        examples = examples_from(self.source, seed=self.seed)
        warn_of_equal_targets(examples)
        self.splits, central, server, self.owner, self.digest = split_examples(
            examples, self.partition, seed=self.seed, split=self.split
        )
        if examples.rescaled is not None:
            examples = examples.rescaled(self.splits["train"].indices)
        self.central_val = val_set(examples)
        if self.split.only is not None:
            self._keep_only(*self.split.only)
        shifted, self.drawn = shift_examples(examples, self.shift, self.splits, seed=self.seed)
        self._set_examples(shifted)
        self._hold_out()
        own_test = self.splits["test"].only(self.participants)
        self.central_test = central if len(central) else own_test.indices
        if self.split.only is not None:  # they are on no client
            self.central_test = self.central_val = np.zeros(0, np.int64)
        self.train_clients = train = self.splits["train"]
        if self.pooled:
            self.train_clients = train.only(self.participants).pooled()
        elif len(server):
            self.server, self.train_clients = self.num_clients, train.with_one_more(server)

    def _keep_only(self, client_id: int, num_clients: int) -> None:
        """Forget the examples of all but one client of a deployment, whose process this is.

        If the partition gives all examples to one client, they are this client's, and so is the
        dataset's own validation set.

        Raises:
            ValueError: if the partition makes another number of clients.
        """
        is_own = self.num_clients == 1
        if not is_own and self.num_clients != num_clients:
            raise ValueError(
                f"partition: makes {self.num_clients} clients, and the deployment has "
                f"{num_clients}; allowed: as many, or partition=whole for a client's own data"
            )
        if is_own and len(self.central_val):
            val = self.central_val
            self.splits["val"] = ClientIndices(val, np.array([0, len(val)]))
        offsets = np.arange(num_clients + 1) > client_id
        for name, split in self.splits.items():
            indices = split.indices_of(0 if is_own else client_id)
            self.splits[name] = ClientIndices(indices, offsets * len(indices))

    def relabel(self, clients: Iterable[int], change: Callable[[Tensor, int], Tensor]) -> None:
        """Change the training labels of some clients, before any training.

        `change` maps labels int64 [M] and C to new labels int64 [M], each a function of its own
        one.
        """

        def targets(labels: Tensor, affected: Affected) -> Tensor:
            return change(labels, affected.facts.num_classes)

        shift, train = Shift("relabelled", at="train", targets=targets), self.train_clients
        relabelled, _ = shift_examples(
            self._given, shift, {"train": train}, seed=self.seed, clients=clients
        )
        self.close()
        self._set_examples(relabelled)

    def poison(self, clients: Iterable[int], backdoor: Backdoor) -> None:
        """Give some training examples of some clients a trigger, before any training."""
        if self.examples.task == "module":
            raise ValueError(
                "a backdoor in the batches of a LightningModule; allowed: another model"
            )
        changed = poisoned(self.examples, backdoor, clients, self.train_clients, seed=self.seed)
        self.backdoor = backdoor
        self.close()
        self._set_examples(changed)

    def client(
        self,
        client_id: int,
        *,
        batching: Batching | None = None,
        round_idx: int = 1,
        rank_share: RankShare = WHOLE,
    ) -> ClientDataModule:
        """Data module of one client; shuffling is a function of (seed, round, client)."""
        batching = batching or self.batching
        return ClientDataModule(
            self, client_id, batching=batching, round_idx=round_idx, rank_share=rank_share
        )
