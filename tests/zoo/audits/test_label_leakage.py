"""Labels from the gradient of the last layer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flfast.zoo.audits.gradient_inversion import leaked_labels


def gradient(model, inputs, labels):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    found = torch.autograd.grad(loss, list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), found, strict=True))


def network(classes, *, bias=True, seed=0, scale=1.0):
    torch.manual_seed(seed)  # noqa: TID251 - a test's own model
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, classes, bias=bias))
    with torch.no_grad():
        model[2].weight.mul_(scale)
    return model


@given(st.integers(2, 9), st.integers(0, 99), st.floats(0.01, 9), st.booleans(), st.data())
def test_the_label_of_one_example_is_certain(classes, seed, factor, bias, data):
    label = data.draw(st.integers(0, classes - 1))
    model = network(classes, bias=bias, seed=seed, scale=3.0)
    with torch.no_grad():
        model[0].bias += 1  # some feature is positive
    inputs = torch.randn(1, 6, generator=torch.Generator().manual_seed(seed))
    found = gradient(model, inputs, torch.tensor([label]))
    scaled = {name: factor * leaf for name, leaf in found.items()}
    assert leaked_labels(scaled, classes, 1).tolist() == [label]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_a_model_that_knows_nothing_leaks_all_labels_of_a_small_batch(labels):
    """Of a larger one, a rare class may have a positive gradient."""
    model = network(10, scale=0.0)
    nn.init.zeros_(model[2].bias)
    found = gradient(model, torch.ones(len(labels), 6), torch.tensor(labels))
    assert leaked_labels(found, 10, len(labels)).tolist() == sorted(labels)


def test_as_many_labels_are_named_as_there_are_even_from_noise():
    noise = {"fc.weight": torch.randn(4, 3), "fc.bias": -torch.ones(4)}
    assert leaked_labels(noise, 4, 2).shape == (2,)
    assert leaked_labels({"fc.bias": torch.ones(4)}, 4, 3).shape == (3,)


def test_a_model_without_a_layer_of_so_many_outputs_is_refused():
    with pytest.raises(ValueError, match=r"no layer of the model has 7 outputs.*labels=known"):
        leaked_labels({"fc.weight": torch.ones(4, 3)}, 7, 1)
