"""A frozen base of 8 bits: close to the given one, a quarter of its bytes, trained and opened."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tables import rows
from torch import nn

from flfast.export import export
from flfast.models.adapters.lora import lora
from flfast.models.adapters.rounded_base import BLOCK, RoundedLinear, has_rounded
from flfast.models.transformer import DecoderTransformer
from flfast.state.weights import read_weights

OPTIONS = {"alpha": 2.0, "dropout": 0.0, "target_modules": None, "train_bias": False}
OPTIONS |= {"rank": 2, "freeze_a": False}


def layer(num_in, num_out, seed=0, *, bias=True):
    rng = torch.Generator().manual_seed(seed)
    linear = nn.Linear(num_in, num_out, bias=bias)
    for leaf in linear.parameters():
        leaf.data = torch.randn(leaf.shape, generator=rng)
    return linear


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99), st.booleans())
def test_a_rounded_weight_is_off_by_half_a_step_at_most(num_in, num_out, seed, bias):
    linear = layer(num_in, num_out, seed, bias=bias)
    linear.weight.data[0] = 0.0
    rounded = RoundedLinear(linear)
    plain = rounded.as_linear()
    step = linear.weight.abs().amax(dim=1, keepdim=True) / 127
    assert ((plain.weight - linear.weight).abs() <= step * 0.501).all()
    x = torch.randn(4, 3, num_in, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(rounded(x), plain(x))


def test_gradients_are_those_of_the_plain_layer_for_many_blocks_and_under_vmap():
    rounded = RoundedLinear(layer(BLOCK // 4, 10))  # blocks of four rows
    plain = rounded.as_linear()
    x = torch.randn(3, 2, BLOCK // 4, generator=torch.Generator().manual_seed(0))
    given_grads, expected = (
        torch.autograd.grad(net(own := x.clone().requires_grad_()).sin().sum(), own)[0]
        for net in (rounded, plain)
    )
    torch.testing.assert_close(given_grads, expected, rtol=1e-4, atol=1e-3)
    grad = torch.func.grad(lambda row: rounded(row).sin().sum())
    torch.testing.assert_close(torch.func.vmap(grad)(x), expected, rtol=1e-4, atol=1e-3)


def transformer(**options):
    torch.manual_seed(0)  # noqa: TID251 - a test's own model
    settings = {"width": 64, "layers": 2, "heads": 4, "dropout": 0.0}
    model = DecoderTransformer(
        input_shape=(8,), num_classes=11, num_tokens=11, task="language", **settings
    )
    return lora(model, **OPTIONS | options)


def num_bytes(adapted):
    return sum(leaf.nbytes for leaf in {id(x): x for x in adapted.base.leaves.values()}.values())


def test_outputs_are_close_bytes_are_a_quarter_and_messages_the_same():
    full, rounded = transformer(base_bits=None), transformer(base_bits=8)
    tokens = torch.arange(24).view(3, 8) % 11
    expected, found = full.model(tokens), rounded.model(tokens)
    assert not torch.equal(found, expected)
    assert (found - expected).abs().max() < 0.02 * expected.std()
    # Embeddings and norms stay as they are.
    linear = [n for n, x in rounded.base.leaves.items() if x.dtype == torch.int8]
    assert len(linear) == 8
    saved = sum(3 * rounded.base.leaves[n].numel() for n in linear)
    scales = sum(x.nbytes for n, x in rounded.base.leaves.items() if n.endswith(".scale"))
    assert num_bytes(full) - num_bytes(rounded) == saved - scales
    assert num_bytes(rounded) < 0.35 * num_bytes(full)
    ours, theirs = (read_weights(one.model) for one in (rounded, full))
    assert ours["params"].keys() == theirs["params"].keys()
    assert not ours["buffers"]


def test_the_complete_model_predicts_as_the_rounded_one_and_has_the_names_of_the_given_one():
    adapted = transformer(base_bits=8)
    weights = read_weights(adapted.model)
    for name, leaf in weights["params"].items():
        if "lora_B" in name:
            leaf.fill_(0.01)
    for name, parameter in adapted.model.named_parameters():
        parameter.data.copy_(weights["params"][name])
    plain = transformer(base_bits=None)
    complete = adapted.complete(weights)
    assert complete.keys() == plain.whole.keys()
    assert has_rounded(adapted.model)
    tokens = torch.arange(8).view(1, 8)
    twin = DecoderTransformer(
        input_shape=(8,),
        num_classes=11,
        num_tokens=11,
        task="language",
        width=64,
        layers=2,
        heads=4,
        dropout=0.0,
    )
    twin.load_state_dict(complete, strict=False)
    torch.testing.assert_close(twin(tokens), adapted.model(tokens), rtol=1e-4, atol=1e-5)


def test_a_model_without_a_layer_of_its_own_weights_is_refused():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(3, 3, 1)
            self.embed, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.out.weight = self.embed.weight

    options = OPTIONS | {"target_modules": ["conv"]}
    with pytest.raises(ValueError, match=r"adapter.base_bits=8: the model has no frozen linear"):
        lora(Tied(), **options, base_bits=8)
    with pytest.raises(ValueError, match=r"adapter.base_bits=8 with adapter.train_bias=true"):
        lora(Tied(), **{**options, "train_bias": True}, base_bits=8)
    lora(copy.deepcopy(Tied()), **options, base_bits=None)


SMALL = (
    *("experiment=quick", "callbacks=none", "model.hidden=[16]", "batch_size=100", "adapter=lora"),
    *("adapter.base_bits=8", "adapter.rank=2", "local_epochs=1", "checkpoint.every=1"),
    "+callbacks.weights._target_=flfast.output.callbacks.final_weights.FinalWeights",
    *("+callbacks.weights.max_personal=null", "+callbacks.weights.model=null"),
)


@pytest.mark.slow
def test_a_run_trains_eagerly_resumes_equally_and_can_be_opened(flfast_run, tmp_path):
    whole = flfast_run(*SMALL, "rounds=2", run_dir="whole")
    found = rows(whole)
    assert float(found[-1]["global/loss"]) < float(found[0]["global/loss"])
    flfast_run(*SMALL, "rounds=1", run_dir="parts")
    parts = flfast_run(*SMALL, "rounds=2", "resume=auto", run_dir="parts")
    first, second = (torch.load(run / "model.pt", weights_only=True) for run in (whole, parts))
    assert all(torch.equal(leaf, second[name]) for name, leaf in first.items())
    plain = flfast_run(*SMALL, "rounds=2", "adapter.base_bits=null", run_dir="plain")
    assert found[-1]["comm/up_bytes"] == rows(plain)[-1]["comm/up_bytes"]
    assert float(found[-1]["global/loss"]) == pytest.approx(
        float(rows(plain)[-1]["global/loss"]), rel=0.02
    )
    path = tmp_path / "model.pt2"
    export([f"run={whole}", "format=torch", f"output={path}"])
    assert path.exists()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("algorithm=flora", "algorithm=flora with adapter.base_bits=8: it adds small changes"),
        ("algorithm=fedex_lora", "algorithm=fedex_lora with adapter.base_bits=8: it adds"),
        ("engine=fused", "with adapter.base_bits=8, programs would keep floats of all weights"),
    ],
)
def test_what_needs_a_base_of_floats_is_refused(flfast_run, capsys, word, message):
    with pytest.raises(SystemExit):
        flfast_run(*SMALL, "rounds=1", word)
    assert message in capsys.readouterr().err
