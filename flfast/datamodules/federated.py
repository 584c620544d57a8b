"""The LightningDataModule of a population: one dataset, many clients."""

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.backdoor import Backdoor, poisoned
from flfast.datamodules.batches import (
    WHOLE,
    Batch,
    EvalLoader,
    Fetch,
    RankShare,
    TrainLoader,
    local_epoch,
)
from flfast.datamodules.client_data import ClientDataModule, transform_batch
from flfast.datamodules.examples import Examples, warn_of_equal_targets
from flfast.datamodules.fetching import Loading, make_fetch
from flfast.datamodules.own_samples import as_samples
from flfast.datamodules.shifts.applying import shift_examples
from flfast.datamodules.shifts.shift import NO_SHIFT, Affected, Shift
from flfast.datamodules.splits import ClientIndices, Split, hold_out, split_examples, val_set
from flfast.state.injection import call_with
from flfast.state.plan import Batching
from flfast.state.randomness import generator
from flfast.state.tree import Tree

_LONGEST_FILE = 40
"""Characters of a client's name in the names of files."""


class Kinds(NamedTuple):
    """Which client is of which kind.

    Attributes:
        names: of the kinds.
        of: place of each client's kind in `names`, int64 [K].
    """

    names: tuple[str, ...]
    of: np.ndarray


class FederatedDataModule(L.LightningDataModule):
    """Loads a dataset once, partitions it, and returns clients by number.

    `Trainer.fit(model, datamodule=module)` trains centrally on all clients' training examples,
    `datamodule=module.client(3)` on those of one client.

    Args:
        source: () -> `Examples`; gets `seed` if it has such a parameter.
        partition: -> owner int64 [N] of the N training examples that the server does not have;
            gets `labels`, `num_examples`, `rng`, `owner` (the dataset's own clients), `inputs`
            and `digest` if it has such parameters.
        seed: seed of partition and splits, >= 0.
        split: shares of examples and clients that are held out from training.
        loading: how examples are read.
        pooled: train one client that has all training examples: the centralised baseline.
        shift: how clients' inputs or labels differ beyond the mix of their labels.
        samples: give batches [inputs, targets], for a module that reads both.
        client: (number, K) of the only client whose examples are kept, of a deployment with K
            clients; None keeps all.

    Attributes:
        examples: all N examples, as clients have them.
        splits: `train`, `val` and `test` by client: every example except the dataset's own
            central test set, the server's examples, and those that `split.few_shot` leaves out.
        central_test: examples of the central test set, int64. Without a test set of the dataset,
            the test examples of all participants.
        central_val: the dataset's own validation set, int64; without one, it is that of clients.
        server: number of the server among `train_clients`, behind the last client; None if it
            has no examples.
        train_clients: `splits["train"]`, and the server's examples as those of one more client.
            If pooled, one client with all of `splits["train"]`.
        owner: client of each training example that is not the server's, in the data's order,
            int64; `digest` identifies the targets of these examples.
        held_out: clients that never take part, int64, ascending; a function of the seed.
        participants: all other clients, int64, ascending.
        drawn: parameters of the shift drawn for each of K clients, by name, [K, ...].
        backdoor: trigger and target class with which the server's model is also evaluated; None
            without attackers of this kind.
        batching: batching of training outside of a federation, which has no plan.
        kinds: of clients, whose models have different architectures; None: all have the same one.
    """

    def __init__(  # noqa: PLR0913 - what a population is made of
        self,
        source: Callable[..., Examples],
        partition: Callable[..., np.ndarray],
        *,
        seed: int,
        split: Split,
        loading: Loading,
        pooled: bool = False,
        samples: bool = False,
        shift: Shift = NO_SHIFT,
        client: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.source, self.partition = source, partition
        self.seed, self.split, self.loading, self.pooled = seed, split, loading, pooled
        self.shift, self._client, self._samples = shift, client, samples
        self.batching = Batching(batch_size=32)
        self.backdoor: Backdoor | None = None
        self.kinds: Kinds | None = None
        self._fetch: Fetch | None = None
        self.central_val = np.zeros(0, np.int64)
        self._server_examples: dict[torch.dtype, Tree] = {}

    def setup(self, stage: str | None = None) -> None:
        """Load, partition and split, once.

        Raises:
            ValueError: if the data are missing or cannot be partitioned as asked.
        """
        if self._fetch is not None:
            return
        examples = call_with(self.source, seed=self.seed)
        warn_of_equal_targets(examples)
        number = self._client and self._client[0]
        self.splits, central, server, self.owner, self.digest = split_examples(
            examples, self.partition, seed=self.seed, split=self.split, client=number
        )
        if examples.rescaled is not None:
            examples = examples.rescaled(self.splits["train"].indices)
        self.central_val = val_set(examples)
        if self._client is not None:
            self._keep_only(*self._client)
        shifted, self.drawn = shift_examples(examples, self.shift, self.splits, seed=self.seed)
        self._set_examples(shifted)
        self._hold_out()
        own_test = self.splits["test"].only(self.participants)
        self.central_test = central if len(central) else own_test.indices
        if self._client is not None:  # they are on no client
            self.central_test = self.central_val = np.zeros(0, np.int64)
        train = self.splits["train"]
        self.server: int | None = None
        self.train_clients = train
        if self.pooled:
            self.train_clients = train.only(self.participants).pooled()
        elif len(server):
            self.server, self.train_clients = self.num_clients, train.with_one_more(server)

    def _hold_out(self) -> None:
        rng = generator(self.seed, "holdout")
        self.held_out, self.participants = hold_out(self.num_clients, self.split.clients, rng)

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

    def _set_examples(self, examples: Examples) -> None:
        self._given = self.examples = examples
        if self._samples and examples.task != "module":
            self.examples = as_samples(examples)
        self._fetch = make_fetch(self.examples, self.loading)
        # Separate workers: a validation pass may run in the middle of a local epoch.
        self._fetch_eval = make_fetch(self.examples, self.loading)

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """Names of the clients, by number; empty unless each is one of the dataset's own."""
        names, own, train = self.examples.client_names, self.examples.owner, self.splits["train"]
        if not names or own is None:
            return ()
        pairs = np.unique(np.stack([train.owner(), own[train.indices]]), axis=1)  # [2, pairs]
        whole = pairs.shape[1] == self.num_clients == len(np.unique(pairs[1]))
        return tuple(names[k] for k in pairs[1]) if whole else ()

    def client_file(self, client_id: int) -> str:
        """Name of a client's own files, without an ending: its number, and perhaps its name."""
        if not self.client_names:
            return str(client_id)
        name = re.sub(r"[^\w.-]+", "_", self.client_names[client_id], flags=re.ASCII)
        return f"{client_id}-{name[:_LONGEST_FILE]}"

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

    def close(self) -> None:
        """End the worker processes, if any; examples cannot be read afterwards."""
        for fetch in (self._fetch, self._fetch_eval):
            getattr(fetch, "close", lambda: None)()

    @property
    def num_clients(self) -> int:
        """Clients in the population."""
        return len(self.splits["train"].offsets) - 1

    @property
    def first_client(self) -> int:
        """The first client with training examples, for trials; 0 in a simulation."""
        return int(np.searchsorted(self.train_clients.offsets[1:], 1))

    @property
    def client_sizes(self) -> np.ndarray:
        """Training examples of each client, int64 [K]; if pooled, of the only one."""
        return self.train_clients.sizes()[: self.num_clients]

    @property
    def candidates(self) -> np.ndarray:
        """Clients that a cohort is drawn from, int64; if pooled, the only client, 0."""
        return np.zeros(1, dtype=np.int64) if self.pooled else self.participants

    @property
    def num_classes(self) -> int:
        """Classes of the dataset."""
        return self.examples.num_classes

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

    def train_dataloader(self) -> TrainLoader:
        """All clients' training examples, for a centralised Trainer."""
        indices = self.splits["train"].indices
        epoch = local_epoch(len(indices), self.batching)
        return TrainLoader(
            self.fetch,
            indices,
            epoch,
            lambda e, n: generator(self.seed, "pool", e).permutation(n),
            counts=self.examples.counts,
        )

    def val_dataloader(self) -> EvalLoader:
        """The central validation set, or all clients' validation examples."""
        return self.eval_loader(
            self.central_val if len(self.central_val) else self.splits["val"].indices
        )

    def test_dataloader(self) -> EvalLoader:
        """The central test set."""
        return self.eval_loader(self.central_test)

    def eval_loader(
        self, indices: np.ndarray, owner: np.ndarray | None = None, rank_share: RankShare = WHOLE
    ) -> EvalLoader:
        """Evaluation batches of the given examples; for the arguments see `EvalLoader`."""
        size = self.loading.eval_batch_size
        return EvalLoader(
            self._fetch_eval, indices, batch_size=size, owner=owner, rank_share=rank_share
        )

    def server_examples(self, dtype: torch.dtype) -> Tree:
        """All of the server's `inputs` [P, ...], transformed to a data type, and `targets`.

        Each call returns the same tensors.
        """
        if dtype not in self._server_examples:
            assert self.server is not None, "setup refuses algorithms that lack them"
            with torch.inference_mode(mode=False):
                batches = [*self.eval_loader(self.train_clients.indices_of(self.server))]
                inputs = torch.cat([batch.inputs for batch in batches])
                self._server_examples[dtype] = {
                    "inputs": self.examples.transform(inputs, dtype=dtype),
                    "targets": torch.cat([batch.targets for batch in batches]),
                }
        return self._server_examples[dtype]

    @property
    def fetch(self) -> Fetch:
        """Reads examples; available after `setup`."""
        assert self._fetch is not None, "call setup() first"
        return self._fetch

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Normalise the batch on its device."""
        return transform_batch(self, self.examples, batch)
