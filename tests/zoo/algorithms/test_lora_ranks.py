"""HetLoRA and FlexLoRA against their equations, in plain torch and double precision."""

from functools import partial
from itertools import product

import pytest
import sliced_runs
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from sampling import others_slow
from sliced_runs import EPOCHS, FAMILY, ROUNDS, WAYS, population
from torch.nn import functional as F

import flfast
from flfast.zoo.algorithms.flexlora import best_factors

RANKS = (3, 2, 1, 3)
"""Of each client: a round robin of the members."""
MEMBER = "{mlp:{hidden:[6]}}"
LORA = (
    *FAMILY,
    f"model.of=[{MEMBER},{MEMBER},{MEMBER}]",
    *("adapter=lora", "adapter.rank=[3,2,1]", "adapter.alpha=6", "adapter.target_modules=[fc1]"),
)


def factors(folder):
    """(A [3, 5], B [6, 3]) of the server's model after a run."""
    found = load_file(folder / "adapter" / "adapter_model.safetensors")
    return [next(leaf for n, leaf in found.items() if f"lora_{x}" in n).double() for x in "AB"]


def trained(base, a, b, x, y):
    def loss(w):
        moved = base["fc1.weight"] + 6 / 3 * w["b"] @ w["a"]
        return F.cross_entropy(sliced_runs.mlp({**base, "fc1.weight": moved}, x), y)

    w = {"a": a, "b": b}
    for _ in range(EPOCHS):
        w = sliced_runs.stepped(w, loss)
    return w["a"], w["b"]


def expected(name, base, a, b):
    x, y, owner = population()
    for _ in range(ROUNDS):
        new = [
            trained(base, a[:r], b[:, :r], x[owner == k], y[owner == k])
            for k, r in enumerate(RANKS)
        ]
        if name == "hetlora":
            sizes = torch.stack([(own_b @ own_a).norm() for own_a, own_b in new])
            shares = sizes / sizes.sum()
            pads = [3 - r for r in RANKS]
            a = sum(
                p * F.pad(m, (0, 0, 0, n)) for p, (m, _), n in zip(shares, new, pads, strict=True)
            )
            b = sum(p * F.pad(m, (0, n)) for p, (_, m), n in zip(shares, new, pads, strict=True))
        else:
            shares = owner.bincount() / len(owner)
            product = sum(p * own_b @ own_a for p, (own_a, own_b) in zip(shares, new, strict=True))
            u, s, v = torch.linalg.svd(product)
            signs = torch.stack([row[row.abs().argmax()].sign() for row in v[:3]])
            a, b = signs.view(-1, 1) * v[:3], u[:, :3] * s[:3] * signs
    return [a, b]


@pytest.mark.parametrize("way", others_slow(["eager", "fused"], ["eager"]))
@pytest.mark.parametrize("name", ["hetlora", "flexlora"])
def test_rounds_follow_the_paper(tmp_path, name, way):
    words = (*LORA, f"algorithm={name}")
    # FlexLoRA would already have decomposed a product of zeros.
    base = sliced_runs.initial(tmp_path / "initial", *LORA, "algorithm=hetlora")
    wanted = expected(name, base, *factors(tmp_path / "initial"))
    sliced_runs.run(tmp_path / "run", *words, f"rounds={ROUNDS}", *WAYS[way])
    torch.testing.assert_close(factors(tmp_path / "run"), wanted, rtol=1e-6, atol=1e-6)
    # A client sends its own ranks.
    row = sliced_runs.last_row(tmp_path / "run")
    assert float(row["comm/up_bytes"]) == 8 * sum(r * (5 + 6) for r in RANKS)


BESIDE = [*product(("heterofl", "hetlora", "flexlora"), ("auto", "eager"))]


@pytest.mark.parametrize(("name", "engine"), others_slow(BESIDE, BESIDE[-1:]))
def test_an_adapter_may_be_beside_every_layer(tmp_path, name, engine):
    words = (*LORA, "adapter.target_modules=null", f"algorithm={name}", "rounds=2")
    found = sliced_runs.run(tmp_path / "run", *words, f"engine={engine}")
    assert all(leaf.isfinite().all() for leaf in found.values())


@given(rank=st.integers(1, 4), seed=st.integers(0, 99))
def test_factors_are_the_best_ones_of_their_rank(rank, seed):
    rng = torch.Generator().manual_seed(seed)
    product = torch.randn(6, 4, generator=rng).double()
    a, b = best_factors(product, torch.zeros(rank, 4).double(), torch.zeros(6, rank).double())
    left = torch.linalg.svdvals(product)[rank:].square().sum().sqrt()
    torch.testing.assert_close((product - b @ a).norm(), left)
    # The first ranks are the best ones of lower rank.
    first = best_factors(product, torch.zeros(1, 4).double(), torch.zeros(6, 1).double())
    torch.testing.assert_close((a[:1], b[:, :1]), first)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["fc", "fc1"])
def test_engines_agree_where_products_have_a_lower_rank(tmp_path, layer):
    # Gradients of logits add up to zero over the classes, so products of the head have rank 2 at
    # most; a first layer of 2 units has rank 2 of 3, too.
    member = f"{{mlp:{{hidden:[{2 if layer == 'fc1' else 6}]}}}}"
    words = (*LORA, f"model.of=[{member},{member},{member}]", f"adapter.target_modules=[{layer}]")
    eager, fused = (
        sliced_runs.run(tmp_path / way, *words, "algorithm=flexlora", "rounds=4", *WAYS[way])
        for way in ("eager", "fused")
    )
    torch.testing.assert_close(fused, eager, rtol=1e-9, atol=1e-9)


@given(rank=st.integers(0, 3), noise=st.floats(0, 1e-9), seed=st.integers(0, 99))
def test_rounding_makes_no_factors(rank, noise, seed):
    rng = torch.Generator().manual_seed(seed)
    drawn = partial(torch.randn, generator=rng, dtype=torch.float64)
    product, a, b = drawn(5, rank) @ drawn(rank, 4), drawn(4, 4), drawn(5, 4)
    new_a, new_b = best_factors(product + noise * product.norm() * drawn(5, 4), a, b)
    torch.testing.assert_close(new_b @ new_a, product, rtol=1e-6, atol=1e-6)
    assert torch.equal(new_a[rank:], a[rank:])
    assert not new_b[:, rank:].any()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["adapter.rank=[3,2]"], r"adapter.rank=\[3, 2\]: allowed: a number, or one for each"),
        (["adapter.rank=[1,2,3]"], "the first member must be the largest"),
        (["adapter.freeze_a=true"], "members that differ in adapter.rank only"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(tmp_path, words, message):
    with pytest.raises(flfast.ConfigError, match=message):
        sliced_runs.run(tmp_path / "run", *LORA, "algorithm=flexlora", *words, "rounds=1")
