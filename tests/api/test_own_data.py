"""Own examples: each form of the same examples is the same run."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from own_reading import read_data
from tables import timeless
from torch.utils.data import TensorDataset

import flfast
from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.digits import digits

WHERE = {"target": None, "client": None}


class Triples:
    """A map-style dataset of (input, target, client)."""

    def __init__(self, *parts):
        self.parts = parts

    def __len__(self):
        return len(self.parts[0])

    def __getitem__(self, index):
        return tuple(part[index] for part in self.parts)


def frame(inputs, targets, clients):
    names = [f"x{i}" for i in range(inputs.shape[1])]
    table = pd.DataFrame(inputs.numpy(), columns=names)
    return table.assign(label=targets.numpy(), who=[f"user {k}" for k in clients.tolist()])


def forms(inputs, targets, clients):
    """The same examples in every form, as arguments of `flfast.run`."""
    arrays = inputs.numpy(), targets.numpy(), clients.numpy()
    return {
        "tensors": {"data": (inputs, targets, clients)},
        "arrays": {"data": arrays},
        "lists": {"data": [part.tolist() for part in arrays]},
        "tensor dataset": {"data": TensorDataset(inputs, targets, clients)},
        "dataset": {"data": Triples(inputs, targets, clients)},
        "arrays of a dataset": {"data": Triples(*arrays)},
        "frame": {"data": frame(inputs, targets, clients), "target": "label", "client": "who"},
    }


def contents(examples):
    inputs = examples.inputs
    if not isinstance(inputs, torch.Tensor):
        inputs = torch.stack([inputs[i] for i in range(len(inputs))])
    return inputs.float(), examples.targets, torch.from_numpy(examples.owner)


def test_every_form_of_the_same_examples_is_read_alike(numbers):
    for name, given in forms(*numbers).items():
        data = given.pop("data")
        read = read_data(data, None, **{**WHERE, **given})
        assert (read.num_classes, read.input_shape, read.is_test) == (3, (5,), None), name
        for found, expected in zip(contents(read), numbers, strict=True):
            assert torch.equal(found, expected), name


@pytest.mark.filterwarnings("error")
def test_a_memory_mapped_array_is_not_copied(numbers, tmp_path):
    np.save(tmp_path / "inputs.npy", numbers[0].numpy())
    mapped = np.load(tmp_path / "inputs.npy", mmap_mode="r")
    read = read_data((mapped, *numbers[1:]), None, **WHERE)
    assert read.inputs.data_ptr() == mapped.ctypes.data
    assert torch.equal(read.inputs, numbers[0])


def test_every_form_of_the_same_examples_is_the_same_run(quick, net, numbers):
    model, given = net(), forms(*numbers)
    histories = [
        timeless(quick(folder=name, model=model, **given[name]).folder)
        for name in ("tensors", "dataset", "frame")
    ]
    assert histories[0] == histories[1] == histories[2]
    assert histories[0][-1]["cohort/clients"] == "4"  # of the data: natural partition


@pytest.mark.slow
def test_the_examples_of_a_source_give_the_run_of_its_option(quick):
    options = flfast.compose().data
    given = {name: options[name] for name in ("test_fraction", "mean", "std")}
    named = timeless(quick(folder="named").folder)
    made = digits(**given, seed=0)
    assert timeless(quick(folder="examples", data=made).folder) == named
    assert timeless(quick(folder="function", data=partial(digits, **given)).folder) == named


def test_clients_are_ignored_by_another_partition(quick, net, numbers):
    words = ("partition=iid", "partition.num_clients=3")
    run = quick(*words, data=numbers, model=net())
    assert set(run.history["cohort/clients"].dropna()) == {3}


def test_columns_of_a_test_set_are_found_by_name(numbers):
    table, names = frame(*numbers), {"target": "label", "client": "who"}
    mixed = table[list(reversed(table.columns))]
    same, other = (read_data(table, test, **names) for test in (table, mixed))
    assert torch.equal(same.inputs, other.inputs)
    assert (same.owner == other.owner).all()


def test_test_examples_are_central_or_belong_to_their_clients(numbers):
    inputs, targets, clients = numbers
    test = inputs[:8], targets[:8]
    central = read_data(numbers, test, **WHERE)
    assert central.is_test.tolist() == [False] * 60 + [True] * 8
    assert set(central.owner[60:]) == {-1}
    own = read_data(numbers, (*test, clients[:8]), **WHERE)
    assert own.owner[60:].tolist() == clients[:8].tolist()
    assert read_data((inputs, targets), test, **WHERE).owner is None


def test_central_test_examples_beside_clients_are_evaluated(quick, net, numbers):
    inputs, targets, _ = numbers
    run = quick(data=numbers, test_data=(inputs[:7], targets[:7]), model=net())
    assert (run.history["global/accuracy"] * 7 % 1 < 1e-6).all()


INPUTS, TARGETS = np.zeros((6, 2), np.float32), np.arange(6) % 2
TABLE = pd.DataFrame({"x": [0.5, 1.5], "city": ["Bonn", "Ulm"], "label": [0, 1]})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": 5}, "data= is of type int; allowed: .inputs, targets. or"),
        ({"data": (INPUTS, TARGETS[:5])}, "targets of shape .5. for 6 inputs; allowed: .6."),
        ({"data": (INPUTS, TARGETS / 2)}, "targets: torch.float64 numbers; allowed: integers"),
        ({"data": (INPUTS, TARGETS - 1)}, "labels must lie in .0, 1., got -1 to 0"),
        ({"data": (INPUTS, list("ababab"))}, "targets: str; .* pandas.factorize"),
        ({"data": (INPUTS[:, 0], TARGETS)}, "inputs of shape .6.; allowed: .N"),
        ({"data": (INPUTS * np.nan, TARGETS)}, "inputs of 6 examples contain NaN or infinity"),
        ({"data": (INPUTS[:0], TARGETS[:0])}, "there is no example"),
        ({"data": [1, 2, 3, 4]}, "item 0 is a int; allowed: .input, target."),
        ({"data": Triples("ab", [0, 1])}, "the input of item 0 is a str; allowed: a tensor"),
        ({"data": Triples([INPUTS, INPUTS[1:]], [0, 1])}, "item 1 has shape .5, 2., item 0 .6"),
        ({"data": TABLE}, "target=None with data= a DataFrame; allowed: one of x, city, label"),
        ({"data": TABLE, "target": "y"}, "target=y with data= a DataFrame"),
        (
            {"data": TABLE[["x", "label"]].mask(TABLE["label"] == 1, np.nan), "target": "label"},
            "column x: 1 of 2 values are missing, in row 1 ",
        ),
        (
            {"data": (INPUTS, TARGETS), "target": "y"},
            "target= with data= of .*; target= names a column of a",
        ),
        ({"test_data": (INPUTS, TARGETS)}, "test_data= needs data="),
        (
            {"data": (INPUTS, TARGETS), "test_data": (INPUTS[:, :1], TARGETS)},
            "test_data=: inputs of shape .1.; allowed: .2., as data=",
        ),
        (
            {"data": (INPUTS, TARGETS, TARGETS), "test_data": (INPUTS, TARGETS, TARGETS + 1)},
            "test_data=: client 2 has no examples in data=",
        ),
        (
            {"data": (INPUTS, TARGETS), "test_data": (INPUTS.astype(np.uint8), TARGETS)},
            "test_data=: inputs of type torch.uint8; allowed: torch.float32",
        ),
        (
            {"data": Triples(INPUTS, np.eye(6))},
            "the target of item 0 has shape .6.; allowed: one integer",
        ),
        ({"data": Triples([], [])}, "data=: there is no example"),
        (
            {
                "data": TABLE[["x", "label"]].assign(who=[1.0, np.nan]),
                "target": "label",
                "client": "who",
            },
            "data=: the clients: 1 of 2 values are missing, in row 1 ",
        ),
        (
            {"data": TABLE[["x", "label"]], "test_data": TABLE[["label"]], "target": "label"},
            "test_data=: column x is in one DataFrame only",
        ),
        (
            {"data": (INPUTS, TARGETS), "test_data": (INPUTS, TARGETS, TARGETS)},
            "test_data= names clients, and data= does not",
        ),
    ],
)
def test_what_cannot_be_read_is_a_clear_error(given, message):
    with pytest.raises(flfast.ConfigError, match=message):
        flfast.run("rounds=1", **given)


def test_an_examples_has_its_own_test_set(numbers):
    inputs, targets, _ = numbers
    read = read_data(numbers[:2], None, **WHERE)
    assert isinstance(read, Examples)
    with pytest.raises(flfast.ConfigError, match="an Examples names its own test set"):
        flfast.run("rounds=1", data=read, test_data=(inputs, targets))


@pytest.mark.parametrize("name", ["tensors", "arrays", "dataset", "frame"])
def test_targets_of_a_regression_are_numbers_in_every_form(name, numbers):
    inputs, targets, clients = numbers
    given = forms(inputs, targets / 4, clients)[name]
    data = given.pop("data")
    read = read_data(data, None, **{**WHERE, **given}, task="regression")
    assert (read.task, read.num_classes) == ("regression", 1)
    torch.testing.assert_close(read.targets, targets.unsqueeze(1) / 4)
    with pytest.raises(flfast.ConfigError, match="learned with task=regression"):
        read_data(data, None, **{**WHERE, **given})


def test_targets_of_other_tasks():
    inputs, labels = torch.randn(6, 4), torch.randint(2, (6, 3))
    read = read_data((inputs, labels), None, **WHERE, task="multilabel")
    assert (read.num_classes, read.targets.shape) == (3, (6, 3))
    tokens = torch.randint(9, (6, 4))
    read = read_data((tokens, tokens.clamp(max=5)), None, **WHERE, task="language")
    assert read.num_classes == int(tokens.max()) + 1
    with pytest.raises(flfast.ConfigError, match=r"of shape \[6\]; allowed: tokens"):
        read_data((tokens, tokens[:, 0]), None, **WHERE, task="language")
    images, masks = torch.randn(6, 1, 4, 4), torch.randint(3, (6, 4, 4))
    read = read_data((images, masks), None, **WHERE, task="segmentation")
    assert (read.num_classes, read.targets.shape) == (int(masks.max()) + 1, (6, 4, 4))
    assert read_data((images, 0 * masks), None, **WHERE, task="segmentation").num_classes == 2
    with pytest.raises(flfast.ConfigError, match=r"of shape \[6\]; allowed: classes of pixels"):
        read_data((images, masks[:, 0, 0]), None, **WHERE, task="segmentation")
    with pytest.raises(flfast.ConfigError, match=r"targets of shape \[5\] for 6 inputs"):
        read_data((images, masks[:5]), None, **WHERE, task="segmentation")


@pytest.mark.slow
def test_the_setting_task_says_what_targets_are(numbers, tmp_path):
    inputs, targets, _ = numbers
    settings = ("rounds=1", "partition=iid", "partition.num_clients=3", "callbacks=none")
    settings += ("model=logistic", "task=regression", "engine=eager")
    run = flfast.run(*settings, data=(inputs, targets / 4), folder=tmp_path / "run")
    assert run.history["global/mae"].notna().all()
    with pytest.raises(flfast.ConfigError, match="algorithm=fedrod with task=regression"):
        flfast.run(*settings, "algorithm=fedrod", data=(inputs, targets / 4), folder=tmp_path)
