"""Predictions of a traced forward pass are those of the model."""

from functools import partial

import pytest
import torch
from torch import nn

from flfast.engines.evaluation.joined_forward import PART, JoinedForward
from flfast.lit.channels_last import use_channels_last
from flfast.models.cnn import cnn
from flfast.models.mlp import mlp

pytestmark = pytest.mark.usefixtures("kernels")
SHAPE = (1, 16, 16)
SMALL = {"input_shape": SHAPE, "num_classes": 3, "channels": [4, 8], "hidden": 16, "padding": 0}


class Counted(nn.Module):
    """Counts its calls, which a program leaves out."""

    def __init__(self, model):
        super().__init__()
        self.model, self.calls = model, 0

    def forward(self, x):
        self.calls += 1
        return self.model(x)


class Branching(Counted):
    def forward(self, x):
        return super().forward(x) * (2 if x.mean() > 0 else 1)


def counted(make=Counted):
    model = make() if isinstance(make, partial) else make(cnn(**SMALL))
    use_channels_last(model)
    return model.eval(), JoinedForward(model)


class Mixing(Counted):
    """Examples of a batch see each other."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


@torch.inference_mode()
def test_outputs_are_those_of_the_model_with_its_weights_of_now():
    model, forward = counted()
    for num in (7, PART + 3, 7):
        x = torch.randn(num, *SHAPE)
        first = forward(x)
        torch.testing.assert_close(first, model(x), rtol=1e-5, atol=1e-5)
        for leaf in model.parameters():
            leaf.mul_(1.5)
        before = model.calls
        found = forward(x)
        assert model.calls == before
        torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
        assert not torch.equal(found, first)


FLAT = {"input_shape": (256,), "num_classes": 3, "hidden": [8], "dropout": 0}
OWN = {
    "branches": Branching,
    "mixes examples": Mixing,
    "has no convolution": partial(Counted, nn.Sequential(nn.Flatten(), mlp(**FLAT))),
    "is hooked": Counted,
    "has many shapes": Counted,
    "has no kernels": Counted,
}


@torch.inference_mode()
@pytest.mark.parametrize("kind", OWN)
def test_the_model_itself_predicts_where_it(kind, monkeypatch):
    model, forward = counted(OWN[kind])
    if kind == "has no kernels":
        monkeypatch.setattr(f"{JoinedForward.__module__}.missing", lambda: "no compiler")
    seen = []
    if kind == "is hooked":
        model.model.conv1.register_forward_hook(lambda *args: seen.append(args))
    for num in range(1, 30) if kind == "has many shapes" else [PART + 5]:
        forward(torch.randn(num, *SHAPE))
    before, x = model.calls, torch.randn(29 if kind == "has many shapes" else PART + 5, *SHAPE)
    seen.clear()
    found = forward(x)
    assert model.calls > before
    assert bool(seen) is (kind == "is hooked")
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
