"""docs/asynchrony.md names the algorithms that asynchronous paces refuse."""

import re
from collections import OrderedDict

from algorithms_by_name import NAMES, algorithm_of
from torch import nn

from flfast.algorithms.contract.algorithm_capabilities import capabilities_of
from flfast.federation.paces.buffered import UNROUNDED
from flfast.state.weights import read_weights


def test_the_refused_algorithms_are_listed(root):
    page = (root / "docs" / "asynchrony.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"### What is refused\n(.*?)\n###", page, flags=re.DOTALL)
    listed = set(re.findall(r"`(\w+)`", section)) & set(NAMES)
    layers = [("fc1", nn.Linear(5, 6)), ("act", nn.Tanh()), ("fc", nn.Linear(6, 3))]
    refused = set()
    for name in NAMES:
        model = nn.Sequential(OrderedDict(layers))
        algorithm = algorithm_of(name, model)
        found = capabilities_of(algorithm, read_weights(model))
        if found.breaks.keys() & UNROUNDED.needs or found.needs & UNROUNDED.breaks.keys():
            refused.add(name)
    assert listed == refused
