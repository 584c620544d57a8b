"""Windows of slices."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flfast.algorithms.kit.slices import narrower, padded, sliced
from flfast.state.tree import tree_map
from flfast.state.weights import read_weights


def test_leading_elements_are_padded():
    whole = {"params": {"w": torch.arange(12.0).view(3, 4)}}
    like = {"params": {"w": torch.zeros(2, 3)}}
    part = sliced(whole, like)
    assert part["params"]["w"].tolist() == [[0, 1, 2], [4, 5, 6]]
    back = padded(part, whole)["params"]["w"]
    assert back.tolist() == [[0, 1, 2, 0], [4, 5, 6, 0], [0, 0, 0, 0]]


def net(channels, hidden):
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.Flatten(),
        nn.Linear(channels * 16, hidden),
        nn.Linear(hidden, 3),
    )


@given(channels=st.integers(1, 4), hidden=st.integers(1, 5), shift=st.integers(0, 9))
def test_a_slice_is_the_whole_model_with_the_other_units_zero(channels, hidden, shift):
    whole, small = net(4, 5), net(channels, hidden)
    part = sliced(read_weights(whole), read_weights(small), shift)
    small.load_state_dict({**part["params"], **part["buffers"]})
    others = padded(part, read_weights(whole), shift)
    whole.load_state_dict({**others["params"], **others["buffers"]})
    x = torch.randn(2, 1, 4, 4, generator=torch.Generator().manual_seed(shift))
    torch.testing.assert_close(whole.eval()(x), small.eval()(x))
    again = sliced(others, read_weights(small), shift)
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), again, part)


def test_members_that_are_slices_of_a_model_come_once():
    nets = [read_weights(net(*sizes)) for sizes in ((4, 5), (2, 5), (2, 3), (2, 5), (1, 4))]
    assert len(narrower(nets, nets[0])) == 4
    assert len(narrower(nets, nets[1])) == 3  # itself, (2, 3) and (1, 4)
    assert len(narrower(nets, nets[2])) == 1
