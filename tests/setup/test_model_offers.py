import numpy as np
import pytest
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.transforms import BatchTransform
from flfast.setup.model_offers import model_offers
from flfast.state.injection import call_with


def offered(model, inputs, *, task="classification", num_classes=4):
    language = task == "language"
    targets = torch.zeros(inputs.shape if language else len(inputs), dtype=torch.int64)
    examples = Examples(
        inputs, targets, num_classes, tuple(inputs.shape[1:]), BatchTransform(), task=task
    )
    return call_with(model, **model_offers(model, examples))


@pytest.mark.parametrize(
    ("inputs", "task", "num_tokens"),
    [
        (torch.tensor([[3, 0], [8, 1]]), "classification", 9),
        (torch.tensor([[3, 0], [2, 1]]), "language", 4),
        (torch.rand(2, 3), "classification", 0),
        (torch.from_numpy(np.full((2, 1, 4, 4), 255, dtype=np.uint8)), "classification", 0),
    ],
)
def test_the_vocabulary_of_the_inputs(inputs, task, num_tokens):
    assert offered(lambda num_tokens: num_tokens, inputs, task=task) == num_tokens


def test_a_model_gets_what_it_asks_for():
    found = offered(lambda input_shape, task: (input_shape, task), torch.rand(2, 3))
    assert found == ((3,), "classification")
