"""Models as users write them: both engines give the same, or a line says why one trains alone."""

import random
from copy import deepcopy

import numpy as np
import pytest
import torch
from composing import FILES
from model_zoo import ZOO, fresh
from torch import nn

import flfast

SMALL = (
    *(
        *FILES,
        "rounds=2",
        "local_epochs=2",
        "batch_size=4",
        "trainer.devices=1",
        "optimizer.lr=0.1",
    ),
    *("trainer.precision=64-true", "split.val=0", "split.test=0.2", "sampler.fraction=1.0"),
    *("optimizer.lr=0.1", "optimized_metric=train/loss"),
)
EAGER = {
    **dict.fromkeys(("Checkpointed", "Reentrant"), "computes layers again"),
    **dict.fromkeys(("CallCounter", "RareCounter"), "changes calls in forward"),
    "Annealed": "changes temperature in forward",
    "Listed": "changes seen in forward",
    **dict.fromkeys(("PythonRandom", "RareRandom"), "draws from Python's random in forward"),
    "NumpyRandom": "draws from NumPy's global generator in forward",
    **dict.fromkeys(("KeepsTensor", "KeepsEarlierTensor"), "changes kept in forward"),
    **dict.fromkeys(("ReplacesBuffer", "ChangesBuffer"), "changes mean in forward"),
    "ReplacesPersistent": "changes a buffer in forward",
    "Branching": "cannot be traced",
    "Recurrent": "a recurrent layer without a kernel",
}
"""Why a model trains eagerly; all others train fused."""
REFUSED = {
    **dict.fromkeys(("GradientHook", "AccumulateHook"), "has a gradient hook, which copies"),
    **dict.fromkeys(("Complex", "ComplexConstant"), "is complex"),
}
FAST = ("CallCounter",)


def everything(model):
    """What a run must not change of a model, and of the process."""
    attributes = {k: deepcopy(v) for k, v in vars(model).items() if not k.startswith("_")}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    seeds = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    return str((attributes, state, seeds))


def trained(name, folder, engine, data):
    """Weights after a run, and the lines of its log."""
    model = fresh(name)
    random.seed(engine)
    np.random.seed(len(str(folder)))  # noqa: NPY002, TID251 - the program's own, of any value
    before = everything(model)
    flfast.run(*SMALL, f"engine={engine}", model=model, data=data, folder=folder)
    assert everything(model) == before
    found = torch.load(folder / "model.pt", weights_only=True)
    return found, (folder / "train.log").read_text()


def assert_both_engines_agree(name, folder, data):
    (auto, log), (eager, _), (again, _) = (
        trained(name, folder / place, engine, data)
        for place, engine in (("auto", "auto"), ("eager", "eager"), ("once more", "eager"))
    )
    assert ("engine eager (" in log) == (name in EAGER)
    assert EAGER.get(name, "engine fused") in log
    for key, value in eager.items():
        assert torch.equal(again[key], value)
    torch.testing.assert_close(auto, eager, rtol=1e-9, atol=1e-9)
    first = fresh(name).state_dict()
    assert any(not torch.equal(first[key], value.to(first[key])) for key, value in eager.items())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
        for name in ZOO
        if name not in REFUSED
    ],
)
def test_engines_agree_and_the_users_model_stays_as_it_was(name, tmp_path, numbers):
    assert_both_engines_agree(name, tmp_path, numbers)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize(
    "made", [fresh, lambda name: lambda: fresh(name)], ids=["module", "class"]
)
def test_parameters_that_cannot_be_trained_as_they_are_are_refused(name, made, tmp_path, numbers):
    with pytest.raises(flfast.ConfigError, match=REFUSED[name]):
        flfast.run(*SMALL, model=made(name), data=numbers, folder=tmp_path / "run")


def holding(kind):
    """A model with a function that uses the model, and so would be shared by copies."""
    model = nn.Sequential(nn.Linear(5, 3))
    if kind == "attribute":
        model.scaled = lambda x: x * model[0].weight.sum()
    else:
        weight = model[0].weight
        model[0].register_forward_hook(lambda module, given, out: out * weight.sum())
    return model


@pytest.mark.parametrize("kind", ["attribute", "hook"])
def test_functions_that_hold_on_to_the_model_are_refused(kind, tmp_path, numbers):
    with pytest.raises(flfast.ConfigError, match="that holds on to the model, which copies"):
        flfast.run(*SMALL, model=holding(kind), data=numbers, folder=tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("words", ["secure=masks", "compression=quantize", "aggregation=median"])
def test_masks_of_booleans_are_sent_as_other_weights(words, tmp_path, numbers):
    flfast.run(*SMALL, words, model=fresh("BoolMask"), data=numbers, folder=tmp_path / "run")
    found = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    assert torch.equal(found["mask"], fresh("BoolMask").mask)


class Cached(nn.Module):
    """Makes a constant in its first call, and a layer."""

    def __init__(self):
        super().__init__()
        self.scale = self.last = None

    def forward(self, x):
        if self.scale is None:
            self.scale, self.last = torch.full((5,), 2.0), nn.Linear(5, 3)
        return self.last(x * self.scale.to(x))


@pytest.mark.slow
def test_what_only_the_first_call_makes_is_no_obstacle(tmp_path, numbers):
    flfast.run(*SMALL, model=Cached, data=numbers, folder=tmp_path / "run")
    assert "engine fused" in (tmp_path / "run" / "train.log").read_text()
