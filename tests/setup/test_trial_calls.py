"""What calls of a model change in Python is noticed in a copy, and nothing else is."""

import random
import threading

import pytest
import torch
from model_zoo import Body, fresh
from models_by_name import NAMES, make_inputs, make_model
from sampling import others_slow
from torch import nn

from flfast.setup.trial_calls import first_outputs, on_trial

QUICK = [name for name in NAMES if name not in {"resnet18", "timm", "transformers", "vgg11"}]
LLAMA = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
LLAMA |= {"intermediate_size": 8, "num_key_value_heads": 2}


def noticed(model, inputs):
    first_outputs(model.eval(), inputs)
    model.train()
    with on_trial(model) as (trial, found):
        trial(inputs).sum().backward()
    return found


@pytest.mark.parametrize("name", others_slow(NAMES, QUICK))
def test_no_model_that_is_shipped_keeps_anything(name):
    assert not noticed(make_model(name), make_inputs(name, 3))


def test_models_with_rotary_positions_keep_nothing():
    options = {"name": "llama", "options": LLAMA}
    model = make_model("transformers", options=options)
    assert not noticed(model, make_inputs("transformers", 3))


class Holding(Body):
    """Attributes of many kinds, of which one is changed."""

    def __init__(self, change):
        super().__init__()
        self.lock, self.rng, self.nan = threading.Lock(), random.Random(0), float("nan")
        self.table, self.layers, self.kinds = {"n": [1, {2}]}, [self.first], {torch.float32}
        self.generator, self.change = torch.Generator(), change

    def between(self, h):
        self.change(self)
        return h


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda model: None, []),
        (lambda model: model.rng.random(), ["rng"]),
        (lambda model: model.table["n"][1].add(3), ["table"]),
        (lambda model: setattr(model, "made", 1), ["made"]),
        (lambda model: setattr(model.first, "used", True), ["first.used"]),
        (lambda model: model.table.update(n=[1, {2}]), []),
    ],
)
def test_attributes_that_change_are_named(change, names):
    model = Holding(change)
    with on_trial(model) as (trial, found):
        trial(torch.ones(2, 5))
    assert found == [f"changes {name} in forward" for name in names]
    assert model.table == {"n": [1, {2}]}


def test_generators_and_buffers_stay():
    before, seeds = random.getstate(), torch.get_rng_state()
    for name in ("PythonRandom", "NumpyRandom", "Dropout", "ChangesBuffer", "BatchNorm"):
        model = fresh(name)
        seeds = torch.get_rng_state()
        values = {n: b.clone() for n, b in model.named_buffers()}
        noticed(model, torch.ones(3, 5))
        assert all(torch.equal(values[n], b) for n, b in model.named_buffers())
        assert random.getstate() == before
        assert torch.equal(torch.get_rng_state(), seeds)


def test_lazy_layers_are_made_in_the_model_itself():
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(3))
    first_outputs(model.eval(), torch.ones(2, 5))
    assert model[1].weight.shape == (3, 4)
