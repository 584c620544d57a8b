"""LoRA and IA3 by peft: layers, files in peft's format, merged weights, averages."""

import importlib
import json
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from flfast.models.adapters.lora import lora
from flfast.state.tree import WeightedMean, tree_map
from flfast.state.weights import read_weights, write_weights
from flfast.zoo.models.adapters.ia3 import ia3

LORA = {"rank": 2, "alpha": 4.0, "dropout": 0.0, "train_bias": False, "freeze_a": False}
LORA |= {"base_bits": None}
IMAGES = torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A convolution, a layer of a transformer, and a linear layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)  # noqa: TID251 - a test's own model
        self.conv = nn.Conv2d(1, 4, 3)
        self.block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.fc = nn.Linear(4, 3)

    def forward(self, images):
        return self.fc(self.block(self.conv(images).flatten(2).mT).mean(1))


def with_lora(**options):
    return lora(Net().eval(), **{**LORA, "target_modules": None, **options})


def with_ia3(target_modules=None, feedforward_modules=None):
    return ia3(
        Net().eval(), target_modules=target_modules, feedforward_modules=feedforward_modules
    )


ADAPTERS = {
    "lora": with_lora,
    "conv": lambda: with_lora(target_modules=["conv", "linear1"]),
    "bias": lambda: with_lora(train_bias=True),
    "ffa": lambda: with_lora(freeze_a=True),
    "ia3": with_ia3,
    "ia3 inputs": lambda: with_ia3(["fc", "linear2", "conv"], ["linear2"]),
}
per_adapter = pytest.mark.parametrize("make", ADAPTERS.values(), ids=ADAPTERS)


def trained(adapted, seed=0):
    """The adapter's weights after a made-up training."""
    rng = torch.Generator().manual_seed(seed)
    return tree_map(
        lambda leaf: leaf + 0.3 * torch.randn(leaf.shape, generator=rng),
        read_weights(adapted.model),
    )


@per_adapter
def test_the_first_model_is_the_base(make):
    torch.testing.assert_close(make().model(IMAGES), Net().eval()(IMAGES), rtol=0, atol=1e-6)


@per_adapter
@torch.no_grad()
def test_complete_weights_fit_the_plain_model_and_predict_the_same(make):
    adapted, plain = make(), Net().eval()
    before = adapted.complete(read_weights(adapted.model))
    assert all(torch.equal(before[name], leaf) for name, leaf in plain.state_dict().items())
    weights = trained(adapted)
    plain.load_state_dict(adapted.complete(weights))
    write_weights(adapted.model, weights)
    outputs = adapted.model(IMAGES)
    torch.testing.assert_close(plain(IMAGES), outputs, rtol=1e-4, atol=1e-5)
    assert (outputs - Net().eval()(IMAGES)).abs().max() > 0.01


@per_adapter
@torch.no_grad()
def test_peft_loads_the_file_of_an_adapter(make, tmp_path):
    from peft import PeftModel

    adapted = make()
    weights = trained(adapted)
    found = {name: leaf.contiguous() for name, leaf in adapted.to_file(weights).items()}
    save_file(found, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapted.settings))
    loaded = PeftModel.from_pretrained(Net(), tmp_path).eval()
    write_weights(adapted.model, weights)
    torch.testing.assert_close(loaded(IMAGES), adapted.model(IMAGES), rtol=1e-4, atol=1e-5)
    again = adapted.from_file(found)
    assert all(torch.equal(again[name], leaf) for name, leaf in weights["params"].items())
    assert again.keys() == weights["params"].keys()


def products(adapted, weights):
    """What LoRA adds to each layer, up to its factor."""
    leaves = {**adapted.base.leaves, **weights["params"]}
    names = [name for name in leaves if "lora_B" in name]
    return {n: leaves[n] @ leaves[n.replace("lora_B", "lora_A")] for n in names}


@given(shares=st.lists(st.floats(0.1, 5.0), min_size=2, max_size=4))
def test_the_mean_of_ffa_lora_is_exact_and_that_of_lora_is_not(shares, averaged):
    for adapted, exact in averaged:
        mean, means = WeightedMean(), WeightedMean()
        for client, share in enumerate(shares):
            weights = trained(adapted, seed=client)
            mean.add(weights, share)
            means.add(products(adapted, weights), share)
        found, wanted = products(adapted, mean.result()), means.result()
        same = [torch.allclose(found[n], leaf, rtol=1e-4, atol=1e-5) for n, leaf in wanted.items()]
        assert same == [exact] * len(same)


@pytest.fixture(scope="module")
def averaged():
    return [(with_lora(freeze_a=True), True), (with_lora(), False)]


def test_ffa_lora_trains_and_stores_half_of_the_factors():
    names = list(read_weights(with_lora(freeze_a=True).model)["params"])
    assert names
    assert all("lora_B" in name for name in names)


def test_by_default_all_linear_layers_that_are_called_get_factors():
    names = list(read_weights(with_lora().model)["params"])
    layers = {name.partition(".lora")[0] for name in names}
    assert layers == {"block.linear1", "block.linear2", "fc"}  # not that inside of attention


class TiedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.fc, self.head = nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5)
        self.head.weight = self.embed.weight


def test_a_layer_that_shares_its_weight_is_left_out_or_refused():
    adapted = lora(TiedHead(), **LORA, target_modules=None)
    assert {name.split(".")[0] for name in read_weights(adapted.model)["params"]} == {"fc"}
    with pytest.raises(ValueError, match=r"head shares its weights with embed.weight"):
        lora(TiedHead(), **LORA, target_modules=["head"])


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["fc9"], r"adapter.target_modules: fc9 fits no linear .*; allowed: conv, block.linear1"),
        (["self_attn"], "self_attn fits no linear"),
        (["out_proj"], "out_proj fits no linear"),
    ],
)
def test_layers_that_cannot_be_adapted_are_refused(wanted, message):
    with pytest.raises(ValueError, match=message):
        with_lora(target_modules=wanted)


def test_scaled_inputs_must_be_among_the_targets():
    with pytest.raises(ValueError, match=r"feedforward_modules: fc is not among"):
        with_ia3(["linear1"], ["fc"])


def test_a_model_of_transformers_gets_the_layers_that_peft_knows():
    transformers = importlib.import_module("transformers")
    tokens = {"n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11, **tokens)
    model = transformers.GPT2LMHeadModel(config).eval()
    tokens = torch.arange(6).reshape(2, 3)
    before = model(tokens).logits
    adapted = lora(model, **LORA, target_modules=None)
    names = list(read_weights(model)["params"])
    assert names == [f"transformer.h.0.attn.c_attn.lora_{x}.default.weight" for x in "AB"]
    assert torch.equal(model(tokens).logits, before)
    assert adapted.complete(read_weights(model)).keys() >= {"transformer.h.0.attn.c_attn.weight"}


def test_a_missing_peft_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"pip install 'flfast\[lora\]'"):
        with_lora()
