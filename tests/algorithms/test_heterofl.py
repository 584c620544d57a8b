"""HeteroFL against its equations, in plain torch and double precision."""

import pytest
import torch
from torch.nn import functional as F

import flfast
from flfast.algorithms.kit.slices import padded, sliced
from flfast.datamodules.examples import Examples
from flfast.output.results.table import read_history

LR, ROUNDS, EPOCHS, WIDTHS = 0.3, 3, 2, (6, 3, 2, 6)
"""Of each client's hidden layer: a round robin of the members."""
MEMBERS = "model.of=[{mlp:{hidden:[6]}},{mlp:{hidden:[3]}},{mlp:{hidden:[2]}}]"
FAMILY = ("model=family", MEMBERS, "model.feature_dim=null", "algorithm=heterofl")
SMALL = (
    *("partition=natural", "callbacks=files", "strategy=single", "split.val=0", "split.test=0"),
    *("batch_size=-1", f"local_epochs={EPOCHS}", f"optimizer.lr={LR}", "eval_every=9"),
    *("trainer.precision=64-true", "sampler.fraction=1.0", "optimized_metric=train/loss"),
)


def population():
    rng = torch.Generator().manual_seed(0)
    y = torch.tensor([0, 1, 2, 0, 0, 1, 1, 2, 1, 2, 2, 0, 1, 0, 2, 2])
    x = torch.randn(len(y), 5, generator=rng) + y.unsqueeze(1)
    owner = torch.arange(4).repeat_interleave(4)
    y[owner == 3] = 2  # a client without two of the classes
    return x, y, owner


def examples():
    x, y, owner = population()
    return Examples(inputs=x, targets=y, num_classes=3, input_shape=(5,), owner=owner.numpy())


def run(folder, *words):
    flfast.run(*SMALL, *words, data=examples(), folder=folder)
    found = torch.load(folder / "model.pt", weights_only=True)
    return {name: leaf.double() for name, leaf in found.items()}


def trained(w, x, y, *, masked):
    for _ in range(EPOCHS):
        point = {name: leaf.clone().requires_grad_() for name, leaf in w.items()}
        z = torch.relu(x @ point["fc1.weight"].T + point["fc1.bias"])
        logits = z @ point["fc.weight"].T + point["fc.bias"]
        if masked:
            logits = logits * torch.isin(torch.arange(3), y)
        grads = torch.autograd.grad(F.cross_entropy(logits, y), list(point.values()))
        w = {name: w[name] - LR * grad for name, grad in zip(point, grads, strict=True)}
    return w


def expected(w, *, masked):
    x, y, owner = population()
    for _ in range(ROUNDS):
        total, num = ({n: torch.zeros_like(leaf) for n, leaf in w.items()} for _ in range(2))
        for k, width in enumerate(WIDTHS):
            axes = {
                "fc1.weight": (slice(width), slice(None)),
                "fc1.bias": (slice(width),),
                "fc.weight": (slice(None), slice(width)),
                "fc.bias": (slice(None),),
            }
            own = {name: w[name][axes[name]] for name in w}
            new = trained(own, x[owner == k].double(), y[owner == k], masked=masked)
            has = torch.isin(torch.arange(3), y[owner == k]) if masked else torch.ones(3)
            for name, leaf in new.items():
                rows = has.double() if name.startswith("fc.") else torch.ones(len(leaf))
                rows = rows.view(-1, *[1] * (leaf.dim() - 1))
                total[name][axes[name]] += rows * (leaf - own[name])
                num[name][axes[name]] += rows
        w = {name: w[name] + total[name] / num[name].clamp(min=1) for name in w}
    return w


@pytest.mark.parametrize("masked", [True, False])
def test_rounds_follow_the_paper(tmp_path, masked):
    words = (*FAMILY, f"algorithm.masked={masked}".lower())
    initial = run(tmp_path / "initial", *words, "rounds=1", "optimizer.lr=1e-300")
    for name, way in (
        ("eager", ("engine=eager",)),
        ("fused", ("engine=fused",)),
        ("ranks", ("engine=eager", "strategy=ddp", "trainer.devices=2")),
    ):
        found = run(tmp_path / name, *words, f"rounds={ROUNDS}", *way)
        torch.testing.assert_close(found, expected(initial, masked=masked), rtol=1e-9, atol=1e-9)
    rows = [
        read_history(tmp_path / name / "metrics.csv")[-1] for name in ("eager", "fused", "ranks")
    ]
    down = sum(8 * (5 * width + width + 3 * width + 3) for width in WIDTHS)
    for row in rows:
        assert float(row["comm/up_bytes"]) == down + masked * 4 * 3 * 8  # the classes
        assert float(row["comm/down_bytes"]) == down


def test_slices_of_the_whole_width_are_fedavg(tmp_path):
    twice = "model.of=[{mlp:{hidden:[6]}},{mlp:{hidden:[6]}}]"
    words = ("rounds=3", "engine=eager")
    slices = (*FAMILY, twice, "algorithm.masked=false")
    plain = ("model=mlp", "model.hidden=[6]", "algorithm=fedavg", "algorithm.weighting=uniform")
    found, other = (
        run(tmp_path / name, *words, *way) for name, way in (("slices", slices), ("plain", plain))
    )
    torch.testing.assert_close(found, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([MEMBERS.replace("[6]", "[1]")], "the first member must be the widest"),
        (["model.of=[{mlp:{hidden:[6]}},logistic]"], "the first member must be the widest"),
        (["aggregation=median"], "its uploads are parts of the model of different sizes"),
        (["secure=masks"], "its uploads are parts of the model of different sizes"),
        (["selection=power_of_choice", "selection.count=2"], "of which they have a part"),
        (["audit=gradient_inversion"], "its uploads are parts of the model of different sizes"),
        (["attack=alie"], "its uploads are parts of the model of different sizes"),
    ],
)
def test_what_slices_cannot_do_is_refused(tmp_path, words, message):
    with pytest.raises(flfast.ConfigError, match=message):
        run(tmp_path / "run", *FAMILY, *words, "rounds=1")


def test_leading_elements_are_padded():
    whole = {"params": {"w": torch.arange(12.0).view(3, 4)}}
    like = {"params": {"w": torch.zeros(2, 3)}}
    part = sliced(whole, like)
    assert part["params"]["w"].tolist() == [[0, 1, 2], [4, 5, 6]]
    back = padded(part, whole)["params"]["w"]
    assert back.tolist() == [[0, 1, 2, 0], [4, 5, 6, 0], [0, 0, 0, 0]]
