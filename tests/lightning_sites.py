"""DataModules of one client each, as nodes of a deployment have them, and one of all clients."""

import lightning as L
import torch
from lightning_modules import Measured
from torch.utils.data import DataLoader, TensorDataset, default_collate


def samples(client):
    """40 samples or more of 8 numbers and 3 classes."""
    inputs = torch.randn(40 + client, 8, generator=torch.Generator().manual_seed(client))
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def as_dicts(rows):
    x, y = default_collate(rows)
    return {"given": {"x": x}, "wanted": y}


def with_texts(rows):
    return {**as_dicts(rows), "texts": ["a text"] * len(rows)}


class Sites(L.LightningDataModule):
    """Samples of some clients; of a single one they are all that there are."""

    def __init__(self, clients, collate=default_collate, *, batch_size=7, val=False):
        super().__init__()
        self.parts, self.collate = {k: samples(k) for k in clients}, collate
        self.batch_size, self.val = batch_size, val
        if len(self.parts) > 1:
            self.clients = {f"site-{k}": part for k, part in self.parts.items()}

    def loader(self, part):
        return DataLoader(part, batch_size=self.batch_size, collate_fn=self.collate)

    def train_dataloader(self):
        return self.loader(next(iter(self.parts.values())))

    def val_dataloader(self):
        return self.loader(samples(9)) if self.val else None


class OfDicts(Measured):
    """Batches are nested dicts."""

    def training_step(self, batch, batch_idx):
        return super().training_step((batch["given"]["x"], batch["wanted"]), batch_idx)

    def validation_step(self, batch, batch_idx):
        super().validation_step((batch["given"]["x"], batch["wanted"]), batch_idx)

    def test_step(self, batch):
        super().test_step((batch["given"]["x"], batch["wanted"]))


class Halves(Measured):
    """Refuses samples of ones, which no node has."""

    def training_step(self, batch, batch_idx):
        if (batch[0] == 1).all():
            raise ValueError("not these")
        return super().training_step(batch, batch_idx)
