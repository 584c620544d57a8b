"""Runs of LightningModules for inputs of 8 numbers and 3 classes, and what `Trainer.fit` gives."""

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

import flfast
from flfast.engines.eager import EagerTraining
from flfast.state.randomness import generator, seed_torch

DATA = (
    "data=synthetic",
    "data.num_examples=72",
    "data.num_test=24",
    "data.shape=[8]",
    "data.num_clients=3",
)
DATA = (*DATA, "data.num_classes=3", "partition=iid", "partition.min_samples=2")
SMALL = (*DATA, "partition.num_clients=3", "batch_size=5", "local_epochs=2", "rounds=2")
QUIET = ("trainer.devices=1", "logger=csv")
ALONE = ("partition.num_clients=1", "split.val=0", "split.test=0", "optimized_metric=train/loss")


def engine_of(run):
    """What the log says of the engine."""
    lines = (run.folder / "train.log").read_text().splitlines()
    return next(line for line in lines if "| engine " in line).split("| engine ")[1]


def weights(run):
    return torch.load(run.folder / "model.pt")


def ended(monkeypatch):
    """A list to which each local training of the eager engine adds how it ended."""
    found, train = [], EagerTraining._train_client

    def kept(self, *args):
        found.append(train(self, *args))
        return found[-1]

    monkeypatch.setattr(EagerTraining, "_train_client", kept)
    return found


def fit_alone(module, options):
    """`Trainer.fit` as its user would, on all training examples, with the run's order."""
    from flfast.setup.build_data import build_data

    data = build_data(flfast.compose(*SMALL, *ALONE))
    indices = data.train_clients.indices_of(0)
    inputs, targets = data.examples.inputs[indices], data.examples.targets[indices]
    if options.get("precision") == "64-true":
        inputs = inputs.double()

    class Order:
        epoch = 0

        def __len__(self):
            return len(indices)

        def __iter__(self):
            rng = generator(0, "shuffle", 1, 0, self.epoch)
            self.epoch += 1
            return iter(rng.permutation(len(indices)).tolist())

    loader = DataLoader(TensorDataset(inputs, targets), batch_size=6, sampler=Order())
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", devices=1, **quiet, **options)
    seed_torch(0, "local training", 1, 0, others=True)
    trainer.fit(module, Epochs(loader))
    torch.set_num_threads(threads)


class Epochs:
    """The batches of a loader, without drawing from torch's generator as a DataLoader does."""

    def __init__(self, loader):
        self.loader = loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):  # a generator: Lightning makes iterators that it never uses
        with torch.random.fork_rng(devices=[]):
            batches = list(self.loader)
        yield from batches
