"""LightningModules as their users write them, for inputs of 8 numbers and 3 classes."""

import os
import signal
from typing import ClassVar

import lightning as L
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F

import flfast


class Network(nn.Module):
    """A plain network, whose parameters have the names of those of `Plain`."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x):
        return self.net(x)


class Plain(L.LightningModule):
    """Cross-entropy and SGD."""

    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = Network().net

    def forward(self, x):
        return self.net(x)

    def loss(self, batch):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class Measured(Plain):
    """Logs numbers and metric objects."""

    def __init__(self):
        super().__init__()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train/double", 2 * loss, on_step=True, on_epoch=True)
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.loss(batch))

    def test_step(self, batch):
        self.accuracy(self(batch[0]), batch[1])
        self.log("test/acc", self.accuracy)
        self.log_dict(
            {"test/loss": self.loss(batch), "test/share of 0": (batch[1] == 0).float().mean()}
        )


class Dropped(Plain):
    """Dropout and Adam."""

    def __init__(self):
        super().__init__()
        self.net.insert(1, nn.Dropout(0.2))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class ByStep(Plain):
    """A scheduler that counts steps, of which it asks the Trainer."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        num = int(self.trainer.estimated_stepping_batches)
        rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=num)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "interval": "step"}}


class ByEpoch(Plain):
    """A scheduler that counts epochs."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Plateau(Plain):
    """A scheduler that watches a metric of validation, as in lightning-hydra-template."""

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.trainer.model.parameters(), lr=0.1)
        rates = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": rates, "monitor": "val/loss"},
        }


class ByHand(Plain):
    """Manual optimization."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


class TwoOptimizers(ByHand):
    """One for each layer, in turn."""

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self):
        first, last = self.net[0].parameters(), self.net[2].parameters()
        return torch.optim.SGD(first, lr=0.1), torch.optim.Adam(last, lr=0.01)


class Killed(TwoOptimizers):
    """Its process is killed in the middle of round 5, if the environment says so."""

    def training_step(self, batch, batch_idx):
        if flfast.round_number(self) == 5 and batch_idx == 1 and "KILL" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        super().training_step(batch, batch_idx)


class Hooked(Plain):
    """Hooks that change gradients by what they read of the Trainer."""

    def on_before_optimizer_step(self, optimizer):
        factor = 1 + 0.1 * self.current_epoch + 0.01 * (self.global_step % 3)
        for p in self.parameters():
            p.grad.mul_(factor)


class Skipping(Plain):
    """Skips every third batch."""

    def training_step(self, batch, batch_idx):
        return None if batch_idx % 3 == 1 else {"loss": self.loss(batch), "other": 1}


class Clipped(Plain):
    """Clips gradients itself."""

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")


class Annealed(Plain):
    """A loss that depends on the epoch."""

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + self.current_epoch)


class Numbered(Plain):
    """A loss that depends on the batch's number."""

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (2 if batch_idx % 2 else 1)


class ByRound(Plain):
    """A loss that depends on the round, which it keeps."""

    rounds: ClassVar[list[int]] = []

    def training_step(self, batch, batch_idx):
        number = flfast.round_number(self)
        self.rounds.append(number)
        return self.loss(batch) * number


class OwnNames(Plain):
    """Has attributes of the names that a trainer might use itself."""

    def __init__(self):
        super().__init__()
        self.link, self.local, self.task_type, self.joint = 1, 2, 3, 4
        self.algorithm = self.facts = self.logged = self.predictions = self.params = "mine"
        self.model = nn.Identity()

    def own(self, factor):
        return self.link * factor

    def observed(self):
        return self.local

    call_step = step = configured = observed

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * self.own(1) * self.call_step() / self.observed()


class Contrastive(Plain):
    """A loss that compares the examples of a batch."""

    def training_step(self, batch, batch_idx):
        z = F.normalize(self(batch[0]), dim=1)
        return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(z), device=z.device))
