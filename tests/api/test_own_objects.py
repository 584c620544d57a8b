"""Own models and algorithms, and what a resume knows of them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from composing import FILES
from tables import timeless
from torch import nn

import flfast
from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.fedprox import fedprox
from flfast.api.own_objects import fingerprint, name_of
from flfast.models.mlp import mlp
from flfast.output.report.content import Content
from flfast.output.results.runs import find_runs


def small(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))


def test_a_function_is_the_option_that_names_it(quick):
    options = flfast.compose().model
    make = partial(mlp, **{k: v for k, v in options.items() if not k.startswith("_")})
    words = ("algorithm=fedprox", "algorithm.mu=0.3")
    named = timeless(quick(*words, folder="named").folder)
    prox = partial(fedprox, weighting="samples", mu=0.3)
    given = quick(*FILES, folder="given", model=make, algorithm=prox)
    assert timeless(given.folder) == named
    assert given.model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.slow
def test_a_module_starts_with_its_weights_and_keeps_them(quick):
    module = small(10)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first, second = (quick(folder=name, model=module) for name in "ab")
    assert timeless(first.folder) == timeless(second.folder)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    other = quick(folder="c", model=small(10))
    assert timeless(other.folder) != timeless(first.folder)


def test_an_algorithm_may_be_made_before(quick):
    own = replace(fedavg(weighting="samples"), name="mine")
    mine, theirs = quick(folder="a", algorithm=own), quick(folder="b")
    assert timeless(mine.folder) == timeless(theirs.folder)
    names = Content(find_runs([mine.folder, theirs.folder])).names
    assert names == ["mine", "fedavg"]  # and not a fingerprint


def test_a_resume_with_another_object_is_refused(quick, net, numbers):
    inputs, targets, clients = numbers
    prox = partial(fedprox, weighting="uniform")
    given = {"data": numbers, "model": net(), "algorithm": partial(prox, mu=1)}
    words = ("checkpoint.every=1", "resume=auto")
    first = quick(*words, folder="run", **given)
    others = {
        "data": (inputs + 1, targets, clients),
        "model": nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.Linear(4, 3)),
        "algorithm": partial(prox, mu=2),
    }
    for name, value in others.items():
        with pytest.raises(flfast.ConfigError, match=f"is another experiment:\n  {name}._own_: "):
            quick(*words, folder="run", **{**given, name: value})
    with pytest.raises(flfast.ConfigError, match="weights of a module count, too"):
        quick(*words, folder="run", **{**given, "model": net()})
    before = timeless(first.folder)
    longer = quick(*words, "rounds=3", folder="run", **given)
    assert timeless(longer.folder)[:3] == before


def test_a_model_cannot_be_rebuilt_without_its_object(quick):
    run = quick(*FILES, model=small)
    assert run.model[1].weight.shape == (10, 64)
    with pytest.raises(flfast.ConfigError, match="is an object of a Python program"):
        _ = flfast.Run(run.folder).model


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        ((), {"model": "mlp"}, "model=.mlp. is a text, not an object; write .model=mlp."),
        ((), {"algorithm": 3}, "algorithm= is of type int; allowed: an Algorithm, or a function"),
        (("model.width=3",), {"model": small}, "model.width=3: flfast.run has model=, too"),
        ((), {"model": nn.Linear(64, 3)}, "inputs of shape .1, 8, 8.: model=.*Linear: "),
        ((), {"model": lambda: 5}, "gives a int; allowed: a torch.nn.Module"),
    ],
)
def test_what_cannot_be_run_is_a_clear_error(quick, words, given, message):
    with pytest.raises(flfast.ConfigError, match=message):
        quick(*words, **given)


def test_fingerprints_are_equal_for_equal_contents_only():
    def with_rate(rate):
        return lambda x: x * rate

    module = nn.Linear(3, 2)
    pairs = [
        (torch.ones(3), torch.ones(3), torch.zeros(3)),
        (torch.ones(3), torch.ones(3), torch.ones(3, 1)),
        (module, module, nn.Linear(3, 2)),
        (with_rate(2), with_rate(2), with_rate(3)),
        (lambda x: x + 1, lambda x: x + 1, lambda x: x + 2),
        (partial(small, 3), partial(small, 3), partial(small, 4)),
        tuple(fedprox(weighting="samples", mu=mu) for mu in (1, 1, 2)),
        ({"a": [1, 2]}, {"a": [1, 2]}, {"a": [2, 1]}),
        tuple(np.array([f"2026-11-{day}"], dtype="M8[D]") for day in (21, 21, 22)),
    ]
    for first, same, other in pairs:
        assert fingerprint(first) == fingerprint(same)
        assert fingerprint(first) != fingerprint(other)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x.flatten(1)[:, :3]))


def test_a_model_whose_layers_share_weights_comes_back(quick, numbers):
    run = quick(*FILES, data=numbers, model=Tied())
    assert run.model.second.weight is run.model.first.weight
    assert torch.load(run.folder / "model.pt")["first.weight"].equal(run.model.first.weight)


def test_names_are_those_of_the_innermost_function():
    assert name_of(partial(partial(small), num_classes=3)).endswith(".small")
    assert name_of(nn.Linear(1, 1)) == "torch.nn.modules.linear.Linear"
