"""Small models as users write them, of 5 numbers in and 3 logits out, by what is special of each.

Each entry makes a new model; `fresh` seeds torch first. Nothing here knows of flfast.
"""

import random

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

WIDTH = 6


class Body(nn.Module):
    """Two layers; models override what is between them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)

    def between(self, h):
        return h

    def forward(self, x):
        return self.last(self.between(torch.tanh(self.first(x))))


class GradientHook(Body):
    def __init__(self):
        super().__init__()
        self.first.weight.register_hook(lambda grad: grad * 3)


class AccumulateHook(Body):
    def __init__(self):
        super().__init__()
        self.first.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(3))


class Checkpointed(Body):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def between(self, h):
        return checkpoint(self.block, h, use_reentrant=False)


class Reentrant(Checkpointed):
    def between(self, h):
        return checkpoint(self.block, h, use_reentrant=True)


class CallCounter(Body):
    calls = 0

    def between(self, h):
        self.calls += 1
        return h * (1 + self.calls / 10)


class RareCounter(Body):
    """Trial steps see no difference: it acts from the sixth call on."""

    calls = 0

    def between(self, h):
        self.calls += 1
        return h if self.calls < 6 else h * 2


class Annealed(Body):
    temperature = 2.0

    def between(self, h):
        if self.training:
            self.temperature *= 0.9
        return h / self.temperature


class Listed(Body):
    """Remembers in a list; only its length counts."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def between(self, h):
        self.seen.append(len(h))
        return h / len(self.seen)


class PythonRandom(Body):
    def between(self, h):
        return h * random.uniform(0.5, 1.5)


class NumpyRandom(Body):
    def between(self, h):
        return h * float(np.random.uniform(0.5, 1.5))  # noqa: NPY002


class RareRandom(Body):
    """Draws in training only, and in every third step or so."""

    def between(self, h):
        return h * 2 if self.training and random.random() < 0.3 else h


class BoolMask(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(WIDTH, WIDTH, dtype=torch.bool).tril())

    def between(self, h):
        return h @ torch.ones(WIDTH, WIDTH).to(h).masked_fill(~self.mask, 0)


class Shared(Body):
    def __init__(self):
        super().__init__()
        layer = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([layer, layer])

    def between(self, h):
        for block in self.blocks:
            h = torch.tanh(block(h))
        return h


class BooleanIndex(Body):
    def between(self, h):
        return h + h[h > 0].mean()


class KeepsTensor(Body):
    kept = None

    def between(self, h):
        self.kept = h.detach().mean(0)
        return h + 0.1 * self.kept


class KeepsEarlierTensor(Body):
    kept = None

    def between(self, h):
        before, self.kept = self.kept, h.detach().mean(0)
        return h if before is None else h + 0.1 * before


class ReplacesBuffer(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)

    def between(self, h):
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h - self.mean


class ChangesBuffer(Body):
    """In place; not persistent, so that it is in no state dict."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)

    def between(self, h):
        self.mean.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return h - self.mean


class ReplacesPersistent(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def between(self, h):
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return h - self.mean


class Complex(Body):
    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64))

    def between(self, h):
        return (h * self.phase).real


class ComplexConstant(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("turn", torch.polar(torch.ones(WIDTH), torch.arange(float(WIDTH))))

    def between(self, h):
        return (h * self.turn).real


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.last = nn.Linear(5, 5), nn.Linear(5, 5)
        self.last.weight = self.up.weight
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.last(torch.tanh(self.up(x)))))


class WeightNorm(Body):
    def __init__(self):
        super().__init__()
        parametrizations.weight_norm(self.first)


class SpectralNorm(Body):
    def __init__(self):
        super().__init__()
        parametrizations.spectral_norm(self.first)


class Dropout(Body):
    def between(self, h):
        return F.dropout(h, 0.3, self.training)


class BatchNorm(Body):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def between(self, h):
        return self.norm(h)


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.LazyLinear(WIDTH), nn.LazyLinear(3)
        self(torch.zeros(2, 5))

    def forward(self, x):
        return self.last(torch.tanh(self.layer(x)))


class IntegerBuffer(Body):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def between(self, h):
        if self.training:
            self.steps += 1
        return h / (1 + self.steps)


class ForwardHook(Body):
    def __init__(self):
        super().__init__()
        self.first.register_forward_hook(lambda module, given, out: out * 2)


class ForwardPreHook(Body):
    def __init__(self):
        super().__init__()
        self.last.register_forward_pre_hook(lambda module, given: (given[0] * 2,))


class BackwardHook(Body):
    def __init__(self):
        super().__init__()
        self.last.register_full_backward_hook(lambda module, into, out: (into[0] * 3,))


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # noqa: ARG004 - torch's signature
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # noqa: ARG004 - torch's signature
        return 3 * grad


class OwnFunction(Body):
    def between(self, h):
        return Tripled.apply(h)


class DoubleOutput(Body):
    def forward(self, x):
        return super().forward(x).double()


class InPlace(Body):
    def between(self, h):
        h = h * 1
        h[:, 0] = 0
        h += 1
        return h.relu_()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.last = nn.GRU(1, WIDTH, batch_first=True), nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.last(self.cell(x.unsqueeze(2))[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(1, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.register_buffer("mask", torch.ones(5, 5, dtype=torch.bool).triu(1))
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        h = self.up(x.unsqueeze(2))
        return self.last(
            self.attention(h, h, h, attn_mask=self.mask, need_weights=False)[0][:, -1]
        )


class Frozen(Body):
    def __init__(self):
        super().__init__()
        self.first.requires_grad_(requires_grad=False)


class Branching(Body):
    def between(self, h):
        return h * 2 if h.sum() > 0 else h


ZOO = {kind.__name__: kind for kind in Body.__subclasses__()} | {
    kind.__name__: kind for kind in (Reentrant, Tied, Lazy, Recurrent, Attention)
}


def fresh(name):
    """A new model with the weights that it always begins with."""
    torch.manual_seed(0)  # noqa: TID251 - a test's own model
    return ZOO[name]()
