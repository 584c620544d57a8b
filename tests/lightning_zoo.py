"""Odd LightningModules as their users write them, by what is special of each.

All but those in `BATCHES` read batches (float [B, 8], one of 3 classes [B]). Nothing here knows of
flfast.
"""

import random
from copy import deepcopy
from dataclasses import dataclass

import lightning as L
import numpy as np
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning_modules import Plain
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

ZOO = {}
"""Modules by name."""


def zoo(kind):
    """Put a class into `ZOO`."""
    ZOO[kind.__name__] = kind
    return kind


def fresh(kind):
    """A new module with the weights that it always begins with."""
    torch.manual_seed(0)  # noqa: TID251 - a test's own module
    random.seed(0)
    return kind()


# -------- parts of the network


@zoo
class Tied(Plain):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.net(self.b(torch.tanh(self.a(x))))


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # noqa: ARG004 - torch's
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # noqa: ARG004 - torch's
        return -0.5 * grad


@zoo
class OwnFunction(Plain):
    def forward(self, x):
        h = self.net[:2](x)
        return self.net[2](h) + 0.1 * self.net[2](Reversed.apply(h))


@zoo
class ForwardHook(Plain):
    def __init__(self):
        super().__init__()
        self.net[0].register_forward_hook(lambda module, args, out: 2 * out)


@zoo
class BackwardHook(Plain):
    def __init__(self):
        super().__init__()
        self.net[1].register_full_backward_hook(lambda module, grads, out: (grads[0] * 2,))


@zoo
class GradientHook(Plain):
    def __init__(self):
        super().__init__()
        self.net[0].weight.register_hook(lambda grad: grad * 3)


@zoo
class IntBuffer(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("mask", torch.ones(8, dtype=torch.bool))

    def training_step(self, batch, batch_idx):
        self.seen += len(batch[0])
        return self.loss((batch[0] * self.mask, batch[1]))


@zoo
class LocalBuffer(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((8,), 0.5), persistent=False)

    def forward(self, x):
        return self.net(x * self.scale)


@zoo
class ChangedLocalBuffer(LocalBuffer):
    def training_step(self, batch, batch_idx):
        self.scale.mul_(0.9).add_(0.1 * batch[0].mean(0))
        return self.loss(batch)


@zoo
class AveragedCopy(Plain):
    """An EMA of the network, updated after each step."""

    def __init__(self):
        super().__init__()
        self.ema = deepcopy(self.net).requires_grad_(requires_grad=False)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            for old, new in zip(self.ema.parameters(), self.net.parameters(), strict=True):
                old.lerp_(new, 0.1)

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", F.cross_entropy(self.ema(batch[0]), batch[1]))


@zoo
class Teacher(AveragedCopy):
    """The EMA teaches, within the step."""

    def training_step(self, batch, batch_idx):
        with torch.no_grad():
            taught = self.ema(batch[0])
        return self.loss(batch) + F.mse_loss(self(batch[0]), taught)


@zoo
class Dropout(Plain):
    def forward(self, x):
        return self.net(F.dropout(x, 0.3, self.training))


def _with(layer, name):
    def made(self):
        Plain.__init__(self)
        self.net.insert(1, layer())

    return zoo(type(name, (Plain,), {"__init__": made}))


BatchNorm = _with(lambda: nn.BatchNorm1d(6), "BatchNorm")
LayerNorm = _with(lambda: nn.LayerNorm(6), "LayerNorm")
GroupNorm = _with(lambda: nn.GroupNorm(2, 6), "GroupNorm")
MomentumNone = _with(lambda: nn.BatchNorm1d(6, momentum=None), "MomentumNone")
PReLU = _with(lambda: nn.PReLU(6), "PReLU")
ShortLazy = _with(lambda: nn.LazyLinear(6), "ShortLazy")


@zoo
class WeightNorm(Plain):
    def __init__(self):
        super().__init__()
        parametrizations.weight_norm(self.net[0])


@zoo
class SpectralNorm(Plain):
    def __init__(self):
        super().__init__()
        parametrizations.spectral_norm(self.net[0])


@zoo
class Orthogonal(Plain):
    def __init__(self):
        super().__init__()
        parametrizations.orthogonal(self.net[0])


@zoo
class CalledLazy(Plain):
    """A lazy layer that `__init__` has called."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(3))
        self.net(torch.zeros(2, 8))


@zoo
class MadeLater(Plain):
    """Layers made in `configure_model`."""

    def __init__(self):
        super().__init__()
        self.net = None

    def configure_model(self):
        if self.net is None:
            torch.manual_seed(5)  # noqa: TID251 - a user's own
            self.net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))


@zoo
class MadeInSetup(Plain):
    """Layers made in `setup`, which asks for the stage."""

    def __init__(self):
        super().__init__()
        self.net = None

    def setup(self, stage):
        if stage == "fit":
            torch.manual_seed(5)  # noqa: TID251 - a user's own
            self.net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))


@zoo
class ReadsData(Plain):
    """`setup` reads the DataModule of the Trainer."""

    def setup(self, stage):
        self.width = len(self.trainer.datamodule.train_dataloader().dataset[0][0])


@zoo
class Frozen(Plain):
    def __init__(self):
        super().__init__()
        self.net[0].requires_grad_(requires_grad=False)


@zoo
class FrozenGroup(Frozen):
    """The optimizer has the trained ones alone."""

    def configure_optimizers(self):
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=0.01)


@zoo
class Unused(Plain):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(4, 4)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.1)


@zoo
class UnusedSgd(Plain):
    """A weight decay must not touch what has no gradient."""

    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, weight_decay=0.1, momentum=0.9)


@zoo
class Detached(Plain):
    def forward(self, x):
        return self.net[2](self.net[:2](x).detach())


@zoo
class Doubles(Plain):
    def __init__(self):
        super().__init__()
        self.net.double()

    def forward(self, x):
        return self.net(x.double())


@zoo
class MixedTypes(Plain):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return self.net(x) * self.scale.float()


@zoo
class ComplexParameter(Plain):
    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def forward(self, x):
        return self.net((x * self.phase).real)


@zoo
class ComplexConstant(Plain):
    def __init__(self):
        super().__init__()
        turn = torch.polar(torch.ones(8), torch.arange(8.0))
        self.register_buffer("turn", turn, persistent=False)

    def forward(self, x):
        return self.net((x * self.turn).real)


@zoo
class TwiceInAList(Plain):
    def __init__(self):
        super().__init__()
        layer = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([layer, layer])

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.net(x)


@zoo
class SharedByName(Plain):
    def __init__(self):
        super().__init__()
        self.backbone = self.net[0]

    def forward(self, x):
        return self.net[2](torch.relu(self.backbone(x)))


@zoo
class Branching(Plain):
    def forward(self, x):
        logits = self.net(x)
        return logits * 2 if logits.sum() > 0 else logits


@zoo
class BooleanIndex(Plain):
    def training_step(self, batch, batch_idx):
        h = self(batch[0])
        return self.loss(batch) + 0.1 * h[batch[0][:, :3] > 0].square().mean()


@zoo
class ItemInStep(Plain):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        return loss * (1 + min(loss.item(), 1.0))


@zoo
class Checkpointed(Plain):
    def forward(self, x):
        return self.net[2](checkpoint(self.net[:2], x, use_reentrant=False))


@zoo
class Reentrant(Plain):
    def forward(self, x):
        x = x.requires_grad_() if self.training else x
        return self.net[2](checkpoint(self.net[:2], x, use_reentrant=True))


@zoo
class Compiled(Plain):
    def setup(self, stage):
        self.net = torch.compile(self.net, backend="eager")


@zoo
class CompiledInPlace(Plain):
    def setup(self, stage):
        self.net.compile(backend="eager")


@zoo
class ParameterList(Plain):
    def __init__(self):
        super().__init__()
        self.extra = nn.ParameterList([nn.Parameter(torch.ones(8)) for _ in range(2)])
        self.named = nn.ParameterDict({"shift": nn.Parameter(torch.zeros(8))})

    def forward(self, x):
        return self.net(x * self.extra[0] + self.extra[1] * self.named["shift"])


@zoo
class Recurrent(Plain):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(1, 8, batch_first=True)

    def forward(self, x):
        return self.net(self.cell(x.unsqueeze(-1))[1][0])


@zoo
class Attention(Plain):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        h = x.view(-1, 2, 4)
        return self.net(self.attention(h, h, h)[0].flatten(1))


@zoo
class SparseEmbedding(Plain):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8, sparse=True)

    def forward(self, x):
        return self.net(x + self.table((x[:, 0] > 0).long()))


@zoo
class InnerModule(Plain):
    """A submodule is a LightningModule with a step of its own."""

    def __init__(self):
        super().__init__()
        self.inner = Plain()

    def forward(self, x):
        return self.net(x) + self.inner(x)


@zoo
class GradientPenalty(Plain):
    """Second derivatives within the step."""

    def training_step(self, batch, batch_idx):
        x = batch[0].detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(self(x).sum(), x, create_graph=True)
        return self.loss(batch) + 0.1 * slope.square().mean()


@zoo
class NoGradInside(Plain):
    """A memory bank: a buffer that steps fill."""

    def __init__(self):
        super().__init__()
        self.register_buffer("bank", torch.zeros(4, 3))

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        with torch.no_grad():
            self.bank[:] = torch.cat([logits.detach()[:1], self.bank[:-1]])
        return (
            F.cross_entropy(logits, batch[1]) + (logits.mean(0) - self.bank.mean(0)).square().sum()
        )


# -------- what it keeps and draws in Python


@zoo
class Counter(Plain):
    calls = 0

    def training_step(self, batch, batch_idx):
        self.calls += 1
        return self.loss(batch) / self.calls


@zoo
class AnnealedWeight(Plain):
    def __init__(self):
        super().__init__()
        self.beta = 1.0

    def training_step(self, batch, batch_idx):
        self.beta *= 0.9
        return self.loss(batch) * (1 + self.beta)


@zoo
class KeepsOutputs(Plain):
    """Tensors with a gradient as attributes, which cannot be copied."""

    def training_step(self, batch, batch_idx):
        self.logits = self(batch[0])
        self.last_loss = F.cross_entropy(self.logits, batch[1])
        return self.last_loss


@zoo
class ListOfOutputs(Plain):
    """The habit of Lightning 1.9: outputs in a list, read when the epoch ends."""

    def __init__(self):
        super().__init__()
        self.outputs = []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.outputs.append(loss.detach())
        return loss

    def on_train_epoch_end(self):
        self.log("train/last", torch.stack(self.outputs).mean())
        self.outputs.clear()


@zoo
class PythonRandom(Plain):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * random.uniform(0.5, 1.5)


@zoo
class NumpyRandom(Plain):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * float(np.random.uniform(0.5, 1.5))  # noqa: NPY002


@zoo
class TorchRandom(Plain):
    def training_step(self, batch, batch_idx):
        return self.loss((batch[0] + torch.randn_like(batch[0]), batch[1]))


@zoo
class OwnGenerator(Plain):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def training_step(self, batch, batch_idx):
        noise = torch.randn(batch[0].shape, generator=self.generator)
        return self.loss((batch[0] + 0.1 * noise, batch[1]))


@zoo
class ByEpoch(Plain):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + self.current_epoch)


@zoo
class ByStep(Plain):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) / (1 + self.global_step)


@zoo
class ByProgress(Plain):
    """A weight of how far the Trainer is."""

    def training_step(self, batch, batch_idx):
        all_steps = self.trainer.max_epochs * self.trainer.num_training_batches
        return self.loss(batch) * (1 + self.trainer.global_step / all_steps)


# -------- what it logs


@zoo
class LogsKinds(Plain):
    """Numbers of all kinds."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train/float", 0.5)
        self.log("train/int", 3)
        self.log("train/bool", True)  # noqa: FBT003 - as users do
        self.log("train/one", loss.detach().reshape(1))
        self.log("train/numpy", np.float32(2))
        self.log_dict({"train/a": loss, "train/b": loss * 2}, prog_bar=True, logger=False)
        return loss


@zoo
class LogsReduced(Plain):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        for reduce in ("sum", "max", "min", "mean"):
            self.log(
                f"train/{reduce}", len(batch[0]), reduce_fx=reduce, on_step=False, on_epoch=True
            )
        self.log("train/forked", loss, on_step=True, on_epoch=True, batch_size=len(batch[0]))
        return loss

    def validation_step(self, batch, batch_idx):
        for reduce in ("sum", "max", "min", "mean"):
            self.log(f"val/{reduce}", float(len(batch[0])), reduce_fx=reduce)


@zoo
class LogsInHooks(Plain):
    def on_train_epoch_end(self):
        self.log("train/ended", float(self.current_epoch))

    def on_validation_epoch_end(self):
        self.log("val/ended", 1.0)

    def on_before_optimizer_step(self, optimizer):
        norm = torch.stack([p.grad.norm() for p in self.parameters()]).norm()
        self.log("train/gradient", norm)

    def on_train_batch_start(self, batch, batch_idx):
        self.log("train/size", float(len(batch[0])))

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.loss(batch))


@zoo
class LogsTwice(Plain):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train/same", loss)
        self.log("train/same", loss)
        return loss


@zoo
class LogsLoss(Plain):
    """Its own `train/loss` is not what it returns."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train/loss", 2 * loss)
        return loss


@zoo
class LogsAccuracyNames(Plain):
    """Names that the run has, too."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        for name in ("num_examples", "train/samples_per_s", "plan/lr", "round", "lr"):
            self.log(name, loss)
        return loss


@zoo
class LogsDictOfMetrics(Plain):
    def __init__(self):
        super().__init__()
        metrics = torchmetrics.MetricCollection(
            {
                "acc": torchmetrics.Accuracy(task="multiclass", num_classes=3),
                "f1": torchmetrics.F1Score(task="multiclass", num_classes=3, average="macro"),
            }
        )
        self.train_metrics = metrics.clone(prefix="train/")
        self.val_metrics = metrics.clone(prefix="val/")

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        self.log_dict(self.train_metrics(logits, batch[1]))
        return F.cross_entropy(logits, batch[1])

    def validation_step(self, batch, batch_idx):
        self.val_metrics.update(self(batch[0]), batch[1])
        self.log_dict(self.val_metrics)


@zoo
class TemplateMetrics(Plain):
    """Those of lightning-hydra-template: means, an accuracy, and the best so far."""

    def __init__(self):
        super().__init__()
        self.train_loss, self.val_loss = torchmetrics.MeanMetric(), torchmetrics.MeanMetric()
        self.val_acc = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        self.val_acc_best = torchmetrics.MaxMetric()

    def on_train_start(self):
        self.val_loss.reset()
        self.val_acc.reset()
        self.val_acc_best.reset()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.train_loss(loss)
        self.log("train/mean", self.train_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("train/synced", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.val_loss(self.loss(batch))
        self.val_acc(self(batch[0]), batch[1])
        self.log("val/loss", self.val_loss, on_step=False, on_epoch=True)
        self.log("val/acc", self.val_acc, on_step=False, on_epoch=True)

    def on_validation_epoch_end(self):
        self.val_acc_best(self.val_acc.compute())
        self.log("val/acc_best", self.val_acc_best.compute(), sync_dist=True)


@zoo
class WrappedMetric(Plain):
    def __init__(self):
        super().__init__()
        inner = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        self.smooth = torchmetrics.wrappers.MinMaxMetric(inner)
        self.classes = torchmetrics.wrappers.ClasswiseWrapper(
            torchmetrics.Accuracy(task="multiclass", num_classes=3, average=None)
        )

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        self.smooth.update(logits, batch[1])
        return F.cross_entropy(logits, batch[1])

    def on_train_epoch_end(self):
        self.log_dict({f"train/{k}": v for k, v in self.smooth.compute().items()})
        self.smooth.reset()

    def validation_step(self, batch, batch_idx):
        self.classes.update(self(batch[0]), batch[1])

    def on_validation_epoch_end(self):
        self.log_dict({f"val/{k}": v for k, v in self.classes.compute().items()})
        self.classes.reset()


@zoo
class ComputedAtTheEnd(Plain):
    def __init__(self):
        super().__init__()
        self.acc = torchmetrics.Accuracy(task="multiclass", num_classes=3)

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        self.acc.update(logits, batch[1])
        return F.cross_entropy(logits, batch[1])

    def on_train_epoch_end(self):
        self.log("train/acc", self.acc.compute())
        self.acc.reset()


@zoo
class MetricInLoss(Plain):
    """The value of a metric object weights the loss."""

    def __init__(self):
        super().__init__()
        self.acc = torchmetrics.Accuracy(task="multiclass", num_classes=3)

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        return F.cross_entropy(logits, batch[1]) * (2 - self.acc(logits, batch[1]))


@zoo
class ByLogger(Plain):
    """Talks to the logger, where there is one."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        if self.logger is not None:
            self.logger.experiment.add_scalar("x", loss)
        self.print("a step") if batch_idx < 0 else None
        return loss


# -------- signatures and outputs of steps


@zoo
class BatchAlone(Plain):
    def training_step(self, batch):
        return self.loss(batch)

    def validation_step(self, batch):
        self.log("loss", self.loss(batch))


@zoo
class AnyArguments(Plain):
    def training_step(self, *args, **kwargs):
        return self.loss(args[0])

    def test_step(self, *args):
        self.log("loss", self.loss(args[0]))


@zoo
class OwnNames(Plain):
    def training_step(self, samples, index):
        return self.loss(samples)

    def validation_step(self, samples, index, dataloader_idx=0):
        self.log("loss", self.loss(samples), add_dataloader_idx=False)


@zoo
class OptionalIndex(Plain):
    def training_step(self, batch, batch_idx=None, verbose=False):  # noqa: FBT002 - as users do
        assert verbose is False
        return self.loss(batch)


@zoo
class ReturnsDict(Plain):
    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        loss = F.cross_entropy(logits, batch[1])
        return {"loss": loss, "logits": logits.detach(), "name": "x", "y": batch[1]}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log("train/right", (outputs["logits"].argmax(1) == outputs["y"]).float().mean())


@zoo
class ReturnsNothing(Plain):
    def training_step(self, batch, batch_idx):
        return None if batch_idx == 1 else self.loss(batch)


@zoo
class ReturnsFloat(Plain):
    def training_step(self, batch, batch_idx):
        return float(self.loss(batch))


@zoo
class ReturnsLosses(Plain):
    """One loss for each example."""

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1], reduction="none")


@zoo
class ReturnsWithoutGradient(Plain):
    def training_step(self, batch, batch_idx):
        return self.loss(batch).detach()


@zoo
class ReturnsOneElement(Plain):
    def training_step(self, batch, batch_idx):
        return self.loss(batch).reshape(1)


@zoo
class DictWithoutLoss(Plain):
    def training_step(self, batch, batch_idx):
        return {"value": self.loss(batch)}


@zoo
class StageArgument(Plain):
    """An argument of its own, which Lightning does not give."""

    def training_step(self, batch, batch_idx, stage="train"):
        loss = self.loss(batch)
        self.log(f"{stage}/own", loss)
        return loss

    def validation_step(self, batch, batch_idx, stage="val"):
        self.log(f"{stage}/own", self.loss(batch))


@zoo
class NoSteps(L.LightningModule):
    """Has no optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 3)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])


# -------- optimizers and schedulers


def _optimizes(name, make, base=Plain):
    return zoo(type(name, (base,), {"configure_optimizers": make}))


SGD, SCHEDULERS = torch.optim.SGD, torch.optim.lr_scheduler
_optimizes("AList", lambda self: [SGD(self.parameters(), lr=0.1)])
_optimizes("ATuple", lambda self: (SGD(self.parameters(), lr=0.1),))
_optimizes("ADict", lambda self: {"optimizer": SGD(self.parameters(), lr=0.1)})
_optimizes("NoOptimizer", lambda self: None)
_optimizes("TwoAutomatic", lambda self: [SGD(self.net[i].parameters(), lr=0.1) for i in (0, 2)])
_optimizes("LBFGS", lambda self: torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3))
_optimizes("AmsGrad", lambda self: torch.optim.Adam(self.parameters(), lr=0.01, amsgrad=True))
_optimizes("Capturable", lambda self: torch.optim.Adam(self.parameters(), lr=0.01, foreach=True))
_optimizes("RateTensor", lambda self: torch.optim.Adam(self.parameters(), lr=torch.tensor(0.01)))
_optimizes("RMSprop", lambda self: torch.optim.RMSprop(self.parameters(), lr=0.01, centered=True))
_optimizes("Nesterov", lambda self: SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True))
_optimizes("Maximizes", lambda self: SGD(self.parameters(), lr=0.01, maximize=True))
_optimizes("ZeroRate", lambda self: SGD(self.parameters(), lr=0.0))
_optimizes("Adadelta", lambda self: torch.optim.Adadelta(self.parameters()))
_optimizes("NamedParameters", lambda self: SGD(self.named_parameters(), lr=0.1))
_optimizes("PartOnly", lambda self: SGD(self.net[2].parameters(), lr=0.1))


@zoo
class Groups(Plain):
    def configure_optimizers(self):
        first = {"params": self.net[0].parameters(), "lr": 0.01, "weight_decay": 0.1}
        return SGD([first, {"params": self.net[2].parameters()}], lr=0.1, momentum=0.5)


@zoo
class DecayOfMatrices(Plain):
    """Every parameter has a group, as in many transformers' code."""

    def configure_optimizers(self):
        groups = [
            {"params": [p], "weight_decay": 0.1 if p.ndim > 1 else 0.0} for p in self.parameters()
        ]
        return torch.optim.AdamW(groups, lr=0.01)


class OwnOptimizer(torch.optim.Optimizer):
    """Takes a step by the sign of gradients."""

    def __init__(self, params, rate):
        super().__init__(params, {"rate": rate})

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad.sign(), alpha=group["rate"])
        return loss


_optimizes("NoRate", lambda self: OwnOptimizer(self.parameters(), 0.01))


def _schedules(name, make, momentum=0.0, **options):
    def configure(self):
        optimizer = SGD(self.parameters(), lr=0.1, momentum=momentum)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), **options}}

    return _optimizes(name, configure)


_schedules("Lambda", lambda o: SCHEDULERS.LambdaLR(o, lambda n: 0.9**n))
_schedules("WarmUp", lambda o: SCHEDULERS.LambdaLR(o, lambda n: min(n / 4, 1)), interval="step")
_schedules(
    "Chained",
    lambda o: SCHEDULERS.ChainedScheduler(
        [SCHEDULERS.ConstantLR(o, 0.5, 2), SCHEDULERS.ExponentialLR(o, 0.9)]
    ),
    interval="step",
)
_schedules(
    "Sequential",
    lambda o: SCHEDULERS.SequentialLR(
        o, [SCHEDULERS.LinearLR(o, 0.1, total_iters=3), SCHEDULERS.CosineAnnealingLR(o, 9)], [3]
    ),
    interval="step",
)
_schedules("OneCycle", lambda o: SCHEDULERS.OneCycleLR(o, 0.3, 100), interval="step", momentum=0.9)
_schedules(
    "Cyclic", lambda o: SCHEDULERS.CyclicLR(o, 0.01, 0.2, step_size_up=3), 0.9, interval="step"
)
_schedules("EverySecond", lambda o: SCHEDULERS.StepLR(o, 1, 0.7), interval="step", frequency=2)
_schedules(
    "PlateauOfTraining",
    lambda o: SCHEDULERS.ReduceLROnPlateau(o, patience=0, threshold=10.0, factor=0.5),
    monitor="train/loss",
)
ZOO["PlateauOfTraining"].training_step = lambda self, batch, batch_idx: (
    self.log("train/loss", loss := self.loss(batch), on_step=False, on_epoch=True) or loss
)


@zoo
class SteppedByHand(Plain):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(epoch=self.current_epoch + 5)

    def configure_optimizers(self):
        optimizer = SGD(self.parameters(), lr=0.1)
        return [optimizer], [SCHEDULERS.ExponentialLR(optimizer, 0.7)]


@zoo
class Adversarial(Plain):
    """A GAN's steps, toggled by hand, with a scheduler each."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.critic = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        loss = self.loss(batch) - self.critic(self(batch[0])).mean()
        first.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(first, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        first.step()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        apart = self.critic(self(batch[0]).detach()).sigmoid().mean()
        second.zero_grad()
        self.manual_backward(apart)
        second.step()
        self.untoggle_optimizer(second)
        self.log_dict({"train/first": loss, "train/second": apart})
        self.lr_schedulers().step()

    def configure_optimizers(self):
        first = torch.optim.Adam(self.net.parameters(), lr=0.01)
        second = torch.optim.Adam(self.critic.parameters(), lr=0.01)
        return [first, second], [SCHEDULERS.StepLR(first, 2, 0.5)]


@zoo
class AccumulatesByHand(Plain):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch) / 2)
        if (batch_idx + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        if self.trainer.is_last_batch:
            self.log("train/epoch", float(self.current_epoch))


@zoo
class AlternatesByHand(Adversarial):
    """Uses `optimizer` as a context of no Trainer, and returns the loss as a dict."""

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()[batch_idx % 2]
        loss = self.loss(batch) + self.critic(self(batch[0])).square().mean()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return {"loss": loss.detach()}


# -------- hooks of Lightning


@zoo
class OwnOptimizerStep(Plain):
    """Warm-up as Lightning's documentation shows it."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, (self.trainer.global_step + 1) / 5)


@zoo
class OwnZeroGrad(Plain):
    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        for p in self.parameters():
            if p.grad is not None:
                p.grad.mul_(0.5)


@zoo
class OwnBackward(Plain):
    def backward(self, loss):
        (2 * loss).backward()


@zoo
class AfterBackward(Plain):
    def on_after_backward(self):
        for p in self.parameters():
            p.grad.nan_to_num_().clamp_(-0.01, 0.01)


@zoo
class Projects(Plain):
    """Weights are put back onto a ball after each step."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            self.net[0].weight.clamp_(-0.2, 0.2)


@zoo
class StopsABatch(Plain):
    """Ends the epoch after two batches."""

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 2 else None


@zoo
class StopsTheFit(Plain):
    def on_train_epoch_end(self):
        self.trainer.should_stop = True


@zoo
class OwnEarlyStopping(Plain):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_callbacks(self):
        return EarlyStopping(
            "train/loss", patience=1, min_delta=10.0, check_on_train_epoch_end=True
        )


@zoo
class OwnModelCheckpoint(Plain):
    def configure_callbacks(self):
        return [ModelCheckpoint(monitor="val/loss")]


@zoo
class OwnCallback(Plain):
    class Doubles(L.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            for p in pl_module.parameters():
                p.grad.mul_(2)

    def configure_callbacks(self):
        return [self.Doubles()]


@zoo
class SavesMore(Plain):
    def __init__(self):
        super().__init__()
        self.temperature = 2.0

    def on_save_checkpoint(self, checkpoint):
        checkpoint["temperature"] = self.temperature

    def on_load_checkpoint(self, checkpoint):
        self.temperature = checkpoint["temperature"]


@zoo
class MovesBatches(Plain):
    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        x, y = super().transfer_batch_to_device(batch, device, dataloader_idx)
        return 2 * x, y


@zoo
class Augments(Plain):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        if self.trainer.training:
            x = x + 0.1 * torch.randn_like(x)
        return x, y


@zoo
class Example(Plain):
    def __init__(self):
        super().__init__()
        self.example_input_array = torch.zeros(1, 8)


@zoo
class KeepsObjects(Plain):
    """Hyperparameters that are a module and a function."""

    def __init__(self, net=None, make=None):
        super().__init__()
        self.save_hyperparameters(ignore=["net"])
        self.net = net or nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
        self.hparams.lr = 0.1
        self.make = make or torch.optim.SGD

    def configure_optimizers(self):
        return self.make(self.parameters(), lr=self.hparams.lr)


@zoo
class NeedsArguments(Plain):
    def __init__(self, width, *, depth):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))
        self.hparams.lr = 0.1


ZOO["NeedsArguments"] = lambda: NeedsArguments(5, depth=1)


@zoo
class ReadsTrainer(Plain):
    """Reads much of the Trainer in hooks."""

    def on_train_start(self):
        trainer = self.trainer
        assert trainer.max_epochs and trainer.num_training_batches > 0
        assert trainer.world_size == 1 and trainer.is_global_zero and self.global_rank == 0
        self.about = (self.logger, self.device, self.hparams, self.dtype, trainer.datamodule)
        assert self.current_epoch == 0 and self.global_step == 0
        assert trainer.train_dataloader is not None
        assert trainer.lr_scheduler_configs == [] and len(trainer.optimizers) == 1
        assert self.optimizers().param_groups[0]["lr"] == 0.1


def _clash(name):
    def made(self):
        Plain.__init__(self)
        setattr(self, name, nn.Linear(8, 8))

    def forward(self, x):
        return self.net(getattr(self, name)(x))

    return zoo(type(f"Has_{name}", (Plain,), {"__init__": made, "forward": forward}))


for _name in (
    *("link", "own", "local", "joint", "params", "model", "algorithm", "task_type", "predictions"),
    *("facts", "logged", "observed", "context", "step", "task"),
):
    _clash(_name)


# -------- other batches


class Samples(Dataset):
    """Samples made from inputs and classes by a function of (number, x, y)."""

    def __init__(self, make, num=72):
        rng = torch.Generator().manual_seed(1)
        self.x, self.y = torch.randn(num, 8, generator=rng), torch.arange(num) % 3
        self.make = make

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.make(i, self.x[i], self.y[i])


@dataclass
class Sample:
    x: torch.Tensor
    y: torch.Tensor


def joined(samples):
    return Sample(torch.stack([s.x for s in samples]), torch.stack([s.y for s in samples]))


def padded(samples):
    return (
        pad_sequence([s[0] for s in samples], batch_first=True),
        torch.stack([s[1] for s in samples]),
    )


class OfDict(Plain):
    def loss(self, batch):
        return F.cross_entropy(self(batch["x"]), batch["y"])


class OfNested(Plain):
    def loss(self, batch):
        (inputs, more), y = batch
        return F.cross_entropy(self(inputs["x"]) + more.mean(), y)


class OfObject(Plain):
    def loss(self, batch):
        return F.cross_entropy(self(batch.x), batch.y)


class OfNone(Plain):
    def loss(self, batch):
        x, nothing, y = batch
        assert nothing is None
        return F.cross_entropy(self(x), y)


class OfText(Plain):
    def loss(self, batch):
        assert all(isinstance(name, str) for name in batch["name"])
        return F.cross_entropy(self(batch["x"]), batch["y"])


class OfSequences(Plain):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(1, 8, batch_first=True)

    def loss(self, batch):
        return F.cross_entropy(self(self.cell(batch[0].unsqueeze(-1))[1][0]), batch[1])


class Unlabelled(Plain):
    def loss(self, batch):
        return (self(batch) - batch[:, :3]).square().mean()


class UnlabelledTuple(Plain):
    def loss(self, batch):
        (x,) = batch
        return (self(x) - x[:, :3]).square().mean()


class Weighted(Plain):
    def loss(self, batch):
        x, y, weight = batch
        return (F.cross_entropy(self(x), y, reduction="none") * weight).sum() / weight.sum()


class ZeroDim(Plain):
    def loss(self, batch):
        x, y = batch
        assert x.ndim == 2 and y.ndim == 1
        return (self(x)[:, 0] - y).square().mean()


class Data(L.LightningDataModule):
    """Loaders of samples with the `collate_fn` of a kind in `BATCHES`."""

    def __init__(self, kind):
        super().__init__()
        _, make, self.collate = BATCHES[kind]
        self.samples, self.others = Samples(make), Samples(make, 12)

    def train_dataloader(self):
        return DataLoader(self.samples, 5, shuffle=True, collate_fn=self.collate)

    def test_dataloader(self):
        return DataLoader(self.others, 5, collate_fn=self.collate)


def none_joined(samples):
    return torch.stack([s[0] for s in samples]), None, torch.stack([s[2] for s in samples])


BATCHES = {
    "dict": (OfDict, lambda i, x, y: {"x": x, "y": y}, None),
    "nested": (OfNested, lambda i, x, y: (({"x": x}, x[:2]), y), None),
    "dataclass": (OfObject, lambda i, x, y: Sample(x, y), joined),
    "None": (OfNone, lambda i, x, y: (x, None, y), none_joined),
    "text": (OfText, lambda i, x, y: {"x": x, "y": y, "name": f"sample {i}"}, None),
    "sequences": (OfSequences, lambda i, x, y: (x[: 3 + i % 5], y), padded),
    "unlabelled": (Unlabelled, lambda i, x, y: x, None),
    "unlabelled tuple": (UnlabelledTuple, lambda i, x, y: (x,), None),
    "weighted": (Weighted, lambda i, x, y: (x, y, x[0].exp()), None),
    "zero-dim": (ZeroDim, lambda i, x, y: (x, float(y)), None),
    "numpy": (ZeroDim, lambda i, x, y: (x.numpy(), np.float32(y)), None),
    "int": (Plain, lambda i, x, y: (x, int(y)), None),
}
"""Modules with samples, and the `collate_fn`, of their own."""
