"""Runs of families whose members are slices of one model, and their rounds in plain torch."""

import torch
from composing import FILES

import flfast
from flfast.datamodules.examples import Examples
from flfast.output.results.table import read_history

LR, ROUNDS, EPOCHS = 0.3, 3, 2
WIDTHS = (6, 3, 2, 6)
"""Of each client's hidden layer: a round robin of the members of `MLPS`."""
MLPS = "model.of=[{mlp:{hidden:[6]}},{mlp:{hidden:[3]}},{mlp:{hidden:[2]}}]"
FAMILY = ("model=family", "model.feature_dim=null")
SMALL = (
    *(*FILES, "partition=natural", "strategy=single", "split.val=0", "split.test=0"),
    *("batch_size=-1", f"local_epochs={EPOCHS}", f"optimizer.lr={LR}", "eval_every=9"),
    *("trainer.precision=64-true", "sampler.fraction=1.0", "optimized_metric=train/loss"),
)
EAGER = ("engine=eager",)
WAYS = {
    "eager": EAGER,
    "fused": ("engine=fused",),
    "ranks": (*EAGER, "strategy=ddp", "trainer.devices=2"),
}


def population(shape=(5,)):
    """Inputs, labels and owners; the last client has one class only."""
    rng = torch.Generator().manual_seed(0)
    y = torch.tensor([0, 1, 2, 0, 0, 1, 1, 2, 1, 2, 2, 0, 1, 0, 2, 2])
    x = torch.randn(len(y), *shape, generator=rng) + y.view(-1, *[1] * len(shape))
    owner = torch.repeat_interleave(torch.tensor([5, 4, 4, 3]))
    y[owner == 3] = 2
    return x, y, owner


def started(folder, *words, shape=(5,)):
    """A run that is over."""
    x, y, owner = population(shape)
    data = Examples(inputs=x, targets=y, num_classes=3, input_shape=shape, owner=owner.numpy())
    return flfast.run(*SMALL, *words, data=data, folder=folder)


def run(folder, *words, shape=(5,)):
    """The weights that the server has after a run, by name."""
    started(folder, *words, shape=shape)
    found = torch.load(folder / "model.pt", weights_only=True)
    return {name: leaf.double() for name, leaf in found.items() if leaf.is_floating_point()}


def initial(folder, *words, **options):
    """Weights before round 1."""
    return run(folder, *words, "rounds=1", "optimizer.lr=1e-300", *EAGER, **options)


def last_row(folder):
    return read_history(folder / "metrics.csv")[-1]


def stepped(w, loss):
    """Weights after a step of gradient descent."""
    point = {name: leaf.clone().requires_grad_() for name, leaf in w.items()}
    grads = torch.autograd.grad(loss(point), list(point.values()))
    return {name: w[name] - LR * grad for name, grad in zip(point, grads, strict=True)}


def mlp(w, x):
    """Logits of the MLP."""
    hidden = torch.relu(x.double() @ w["fc1.weight"].T + w["fc1.bias"])
    return hidden @ w["fc.weight"].T + w["fc.bias"]


def normalised(units):
    """A model whose units depend on each other."""
    layers = (torch.nn.Linear(5, units), torch.nn.LayerNorm(units), torch.nn.Linear(units, 3))
    return torch.nn.Sequential(*layers)


def leading(width):
    return torch.arange(width)


def rounds_of(w, local, *, window=lambda t, width: leading(width), rows=None, weights=(1,) * 4):
    """Weights of the whole MLP after `ROUNDS`.

    Args:
        w: before round 1.
        local: (round from 0, client, weights of the slice) -> its weights after training.
        window: (round from 0, width) -> units that a slice has.
        rows: client -> 0 or 1 for each row of the last layer; None: all rows.
        weights: of the clients.
    """
    for t in range(ROUNDS):
        total, num = ({n: torch.zeros_like(leaf) for n, leaf in w.items()} for _ in range(2))
        for k, width in enumerate(WIDTHS):
            has = torch.zeros(6, dtype=torch.bool)
            has[window(t, width)] = True
            every = torch.ones(3) if rows is None else rows(k)
            hidden = w["fc1.weight"].shape[1]
            own = {
                "fc1.weight": w["fc1.weight"][window(t, width)],
                "fc1.bias": w["fc1.bias"][window(t, width)],
                "fc.weight": w["fc.weight"][:, window(t, width)],
                "fc.bias": w["fc.bias"],
            }
            masks = {
                "fc1.weight": has.view(-1, 1).expand(-1, hidden),
                "fc1.bias": has,
                "fc.weight": has.expand(3, -1) * every.view(-1, 1),
                "fc.bias": every,
            }
            new = local(t, k, own)
            for name, mask in masks.items():
                change = torch.zeros_like(w[name])
                at = window(t, width)
                where = (slice(None), at) if name == "fc.weight" else (at,)
                where = (slice(None),) if name == "fc.bias" else where
                change[where] = new[name] - own[name]
                total[name] += weights[k] * mask * change
                num[name] += weights[k] * mask
        w = {name: w[name] + total[name] / num[name].clamp(min=1) for name in w}
    return w
