"""The examples of a population, by client, and loaders of them."""

import re
from functools import cached_property
from typing import NamedTuple

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.states import RunningStage

from flfast.datamodules.backdoor import Backdoor
from flfast.datamodules.batches import (
    WHOLE,
    Batch,
    EvalLoader,
    Fetch,
    RankShare,
    TrainLoader,
    local_epoch,
)
from flfast.datamodules.examples import ClientIndices, Examples
from flfast.datamodules.fetching import Loading, make_fetch
from flfast.datamodules.own_samples import as_samples
from flfast.datamodules.splits import Split, hold_out
from flfast.datamodules.stored_examples import StoredExamples
from flfast.state.plan import Batching
from flfast.state.randomness import generator
from flfast.state.tree import Tree
from flfast.state.weights import dtype_of_module

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


class Population(L.LightningDataModule):
    """One dataset of which each client has a part; as a data module, all clients at once.

    Args:
        seed: seed of partition and splits, >= 0.
        split: how the examples are divided.
        loading: how examples are read.

    Attributes:
        examples: all N examples, as clients have them.
        stored: the same, for devices.
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

    def __init__(self, *, seed: int, split: Split, loading: Loading) -> None:
        super().__init__()
        self.seed, self.split, self.loading = seed, split, loading
        self.batching = Batching(batch_size=32)
        self.backdoor: Backdoor | None = None
        self.kinds: Kinds | None = None
        self.examples: Examples
        self.splits: dict[str, ClientIndices] = {}
        self.train_clients: ClientIndices
        self.central_test = self.central_val = np.zeros(0, np.int64)
        self.server: int | None = None
        self._fetch: Fetch | None = None
        self._server_examples: dict[torch.dtype, Tree] = {}

    def _set_examples(self, examples: Examples) -> None:
        self._given = self.examples = examples
        if self.loading.samples and examples.task != "module":
            self.examples = as_samples(examples)
        self.stored = StoredExamples(self.examples)
        self._fetch = make_fetch(self.examples, self.loading)
        # Separate workers: a validation pass may run in the middle of a local epoch.
        self._fetch_eval = make_fetch(self.examples, self.loading)

    def _hold_out(self) -> None:
        rng = generator(self.seed, "holdout")
        self.held_out, self.participants = hold_out(self.num_clients, self.split.clients, rng)

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

    def close(self) -> None:
        """End the worker processes, if any; examples cannot be read afterwards."""
        for fetch in (self._fetch, self._fetch_eval):
            getattr(fetch, "close", lambda: None)()

    @property
    def pooled(self) -> bool:
        """Whether one client has all training examples: the centralised baseline."""
        return self.split.pooled

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

    def train_dataloader(self) -> TrainLoader:
        """All clients' training examples, for a Trainer outside of a federation."""
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
        self,
        indices: np.ndarray,
        owner: np.ndarray | None = None,
        rank_share: RankShare = WHOLE,
        *,
        device: torch.device | None = None,
    ) -> EvalLoader:
        """Evaluation batches of the given examples; for the arguments see `EvalLoader`.

        They are on the `device` if training keeps the examples there; otherwise on the CPU.
        """
        size, fetch = self.loading.eval_batch_size, device and self.stored.fetch(device)
        fetch = fetch or self._fetch_eval
        return EvalLoader(fetch, indices, batch_size=size, owner=owner, rank_share=rank_share)

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


def transform_batch(
    module: L.LightningDataModule,
    examples: Examples,
    batch: Batch,
    *,
    rng: np.random.Generator | None = None,
) -> Batch:
    """Normalise a batch to the model's precision; `rng` augments it, during training only."""
    trainer = module.trainer
    assert trainer is not None
    # Not the `dtype` of Lightning, which stays that of an earlier phase of the schedule.
    has_model = trainer.model is not None
    dtype = dtype_of_module(trainer.lightning_module) if has_model else torch.get_default_dtype()
    training = trainer.state.stage == RunningStage.TRAINING
    inputs = examples.transform(batch.inputs, dtype=dtype, rng=rng if training else None)
    return batch._replace(inputs=inputs)
