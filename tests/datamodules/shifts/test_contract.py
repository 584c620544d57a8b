"""What every shift promises, for all files of the folder."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shifting import CLASSES, CONF, images, make, splits
from torch.utils.data import Dataset

from flfast.datamodules.examples import group_by_client
from flfast.datamodules.shifts import applying
from flfast.datamodules.shifts.applying import ShiftedInputs, shift_examples

NAMES = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "none")
COLOURED = {"saturation": 0.5, "hue": 0.2, "permute_channels": True}
STRONG = {
    "rotation": {"max_degrees": 20.0, "assignment": "random"},
    "colour": COLOURED,
    "permuted_labels": {"assignment": "random"},
    "label_noise": {"rate": 0.9},
    "missing_modality": {"probability": 0.9},
}
WITHOUT = {
    "rotation": {"angles": [0.0], "max_degrees": 0.0},
    "noise": {"sigma": 0.0},
    "blur": {"sigma": 0.0},
    "colour": {"brightness": 0.0, "contrast": 0.0},
    "permuted_labels": {"groups": 1},
    "label_noise": {"rate": 0.0},
    "missing_modality": {"probability": 0.0},
}


class Read(Dataset):
    """Inputs that are not in memory."""

    def __init__(self, inputs):
        self.inputs = inputs

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index]


def same(one, other):
    return torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)


def changed(before, after):
    """Examples whose input or target differs, bool [N]."""
    inputs = (before.inputs != after.inputs).flatten(start_dim=1).any(dim=1)
    return (inputs | (before.targets != after.targets)).numpy()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8)
@given(num_clients=st.integers(1, 9), seed=st.integers(0, 2**32), drawn=st.integers(0, 2**32))
def test_a_shift_is_a_function_of_the_seed_and_changes_examples_of_clients_only(
    name, num_clients, seed, drawn
):
    examples, parts = images(), splits(60, num_clients, np.random.default_rng(drawn))
    shift = make(name, **STRONG.get(name, {}))
    before = images()
    after, got = shift_examples(examples, shift, parts, seed=seed)
    again, got_again = shift_examples(examples, shift, parts, seed=seed)
    assert same(examples, before), "the given examples changed"
    assert same(after, again)
    assert after.inputs.dtype == before.inputs.dtype
    assert after.targets.dtype == torch.int64
    assert set(after.targets.tolist()) <= set(range(CLASSES))
    for key, values in got.items():
        assert len(values) == num_clients, key
        np.testing.assert_array_equal(values, got_again[key])
    allowed = ("train",) if name == "label_noise" else ("train", "val", "test")
    mine = np.concatenate([parts[split].indices for split in allowed])
    assert set(np.flatnonzero(changed(before, after))) <= set(mine)


@pytest.mark.parametrize("name", NAMES)
def test_without_strength_nothing_changes_and_with_some_it_does(name):
    examples, parts = images(), splits(60, 4, np.random.default_rng(0))
    for seed in range(3):
        weak, _ = shift_examples(examples, make(name, **WITHOUT[name]), parts, seed=seed)
        assert same(weak, examples)
        options = STRONG.get(name, {})
        strong, _ = shift_examples(examples, make(name, **options), parts, seed=seed)
        other, _ = shift_examples(examples, make(name, **options), parts, seed=seed + 1)
        assert not same(strong, examples)
        random = name not in {"blur"}  # its levels are linear
        assert same(strong, other) != random


@pytest.mark.parametrize("name", [name for name in NAMES if name != "label_noise"])
def test_at_test_leaves_training_and_validation_alone(name):
    examples, parts = images(), splits(60, 4, np.random.default_rng(0))
    everywhere, _ = shift_examples(examples, make(name, **STRONG.get(name, {})), parts, seed=0)
    shift = make(name, **STRONG.get(name, {}), at="test")
    at_test, _ = shift_examples(examples, shift, parts, seed=0)
    test = parts["test"].indices
    assert set(np.flatnonzero(changed(examples, at_test))) <= set(test)
    assert torch.equal(at_test.inputs[test], everywhere.inputs[test])
    assert torch.equal(at_test.targets[test], everywhere.targets[test])


@pytest.mark.parametrize("name", NAMES)
def test_inputs_that_are_read_are_shifted_as_those_in_memory(name, monkeypatch):
    parts = splits(60, 4, np.random.default_rng(0))
    shift = make(name, **STRONG.get(name, {}))
    in_memory, _ = shift_examples(images(), shift, parts, seed=0)
    if shift.inputs is None:
        return
    given = images()
    object.__setattr__(given, "inputs", Read(given.inputs))
    monkeypatch.setattr(applying, "free_memory", lambda: 0)
    for examples in (given, images()):  # a Dataset, and a tensor without room for a copy
        read, _ = shift_examples(examples, shift, parts, seed=0)
        inputs = pickle.loads(pickle.dumps(read.inputs))
        assert isinstance(inputs, ShiftedInputs)
        assert len(inputs) == 60
        for index, expected in enumerate(in_memory.inputs):
            assert torch.equal(inputs[index], expected)


def test_a_shift_of_nobody_is_said(caplog):
    parts = splits(60, 4, np.random.default_rng(0))
    none = np.zeros(0, dtype=np.int64)
    parts["test"] = group_by_client(none, none, 4)
    after, _ = shift_examples(images(), make("rotation", at="test"), parts, seed=0)
    assert same(after, images())
    assert "shift.at=test changes nothing" in caplog.text
