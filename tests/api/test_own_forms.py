"""Each form of the same samples is read alike, or refused in a line, for every kind of model."""

import lightning as L
import pandas as pd
import pytest
import torch
from own_reading import read_data
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
)

import flfast
from flfast.datamodules.examples import Examples
from flfast.datamodules.samples import StackedSamples

X, Y = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 4
DATA = TensorDataset(X, Y)
OWNER = [0] * 4 + [1] * 8
WHO = ["a"] * 4 + ["b"] * 8
PARTS = Subset(DATA, range(4)), Subset(DATA, range(4, 12))
TASKS = ("classification", "module")


class Pairs(Dataset):
    """Samples that no class of torch's holds."""

    def __init__(self):
        self.who, self.by_halves = WHO, [k // 6 for k in range(12)]

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return X[index], Y[index]


class Doubled(TensorDataset):
    """Tensors, and what is made of them when they are read."""

    who = WHO

    def __getitem__(self, index):
        inputs, targets = super().__getitem__(index)
        return 2 * inputs, targets


class Stream(IterableDataset):
    """No length."""

    def __iter__(self):
        return iter(DATA)


class Data(L.LightningDataModule):
    """Loaders of all samples."""

    def __init__(self, clients=None, tests=None):
        super().__init__()
        self.clients, self.tests = clients, tests

    def train_dataloader(self):
        return DataLoader(DATA, 5)

    def test_dataloader(self):
        return self.tests


PLAIN = {
    "tensors": (X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "a list of tensors": [X, Y],
    "a TensorDataset": DATA,
    "a StackDataset": StackDataset(X, Y),
    "a list of samples": [*DATA],
    "a Dataset": Pairs(),
    "a DataLoader": DataLoader(DATA, 5, shuffle=True),
    "a DataModule": Data(),
}
WITH_CLIENTS = {
    "a list of Datasets": [*PARTS],
    "a tuple of Datasets": PARTS,
    "a dict of Datasets": {"a": PARTS[0], "b": PARTS[1]},
    "a DataModule with names": Data(WHO),
    "a DataModule with Datasets": Data({"a": PARTS[0], "b": PARTS[1]}),
}
REFUSED = {
    "a stream": Stream(),
    "a number": 3,
    "an empty list": [],
    "train and test": {"train": DATA, "test": DATA},
    "an empty client": [DATA, Subset(DATA, [])],
    "lengths that differ": (X, Y[:5]),
    "a loader of a stream": DataLoader(Stream()),
    "several loaders": Data(tests=DataLoader(Stream())),
}
NAMED = {form for form in WITH_CLIENTS if "dict" in form or "Module" in form}


def read(data, task, test_data=None, **given):
    return read_data(data, test_data, task=task, **{"target": None, "client": None, **given})


def samples(found):
    """Inputs and targets, or labels, of examples."""
    if found.task == "module":
        assert isinstance(found.inputs, StackedSamples)
        return found.inputs.leaves[0], found.labels
    inputs = found.inputs
    return torch.stack([inputs[index] for index in range(len(inputs))]), found.targets


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("form", [*PLAIN, *WITH_CLIENTS])
def test_a_form_gives_the_samples_and_their_clients(form, task):
    found = read({**PLAIN, **WITH_CLIENTS}[form], task)
    assert found.task == task
    for own, expected in zip(samples(found), (X, Y), strict=True):
        assert torch.equal(own, expected)
    assert found.is_test is None
    assert (None if found.owner is None else found.owner.tolist()) == (
        OWNER if form in WITH_CLIENTS else None
    )
    assert found.client_names == (("a", "b") if form in NAMED else ())
    assert found.batch_size == (5 if "DataLoader" in form or "DataModule" in form else None)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("form", PLAIN)
def test_clients_and_labels_are_named_in_every_form(form, task):
    labels = read(PLAIN[form], task, labels=lambda sample: int(sample[1]) // 2).labels
    assert labels.tolist() == (Y // 2).tolist()
    named = read(PLAIN[form], task, client=WHO)
    assert (named.owner.tolist(), named.client_names) == (OWNER, ("a", "b"))
    by_label = read(PLAIN[form], task, client=1)
    assert by_label.owner.tolist() == Y.tolist()
    by_function = read(PLAIN[form], task, client=lambda sample: f"label {int(sample[1])}")
    assert by_function.client_names == tuple(f"label {number}" for number in range(4))
    if form == "a Dataset":
        assert read(PLAIN[form], task, client="who").owner.tolist() == OWNER
        halves = read(PLAIN[form], task, labels="by_halves").labels
        assert halves.tolist() == [0] * 6 + [1] * 6
    else:
        with pytest.raises(flfast.ConfigError, match="client=who: allowed: an attribute of the"):
            read(PLAIN[form], task, client="who")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("form", [*PLAIN, *WITH_CLIENTS])
def test_a_test_set_is_central_or_the_clients_own(form, task):
    data = {**PLAIN, **WITH_CLIENTS}[form]
    if isinstance(data, L.LightningDataModule):
        with pytest.raises(flfast.ConfigError, match="test_data= with data= of type Data"):
            read(data, task, DATA)
        found = read(Data(data.clients, DataLoader(DATA)), task)
    else:
        found = read(data, task, data)
    assert found.is_test.tolist() == [False] * 12 + [True] * 12
    for own, expected in zip(samples(found), (X, Y), strict=True):
        assert torch.equal(own[:12], expected)
    assert torch.equal(samples(found)[0][12:], X)
    if found.owner is not None:
        central = isinstance(data, L.LightningDataModule)
        assert found.owner[12:].tolist() == ([-1] * 12 if central else OWNER)
    if form not in WITH_CLIENTS and "Loader" not in form and "Module" not in form:
        own = read(data, task, data, client=1)
        assert own.owner.tolist() == [*Y.tolist(), *Y.tolist()]
        named = read(data, task, data, client=WHO)
        assert named.owner.tolist() == [*OWNER, *[-1] * 12]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("form", REFUSED)
def test_other_forms_are_refused_in_a_line(form, task):
    with pytest.raises(flfast.ConfigError, match=r"allowed|there is no example") as refused:
        read(REFUSED[form], task)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("data=")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("form", WITH_CLIENTS)
def test_clients_have_one_name(form, task):
    if "Module" in form:  # whose own clients are a default
        assert read(WITH_CLIENTS[form], task, client=["x"] * 12).client_names == ("x",)
        return
    with pytest.raises(flfast.ConfigError, match="client= with Datasets of clients as data="):
        read(WITH_CLIENTS[form], task, client=WHO)


@pytest.mark.parametrize("task", TASKS)
def test_a_dataset_of_tensors_that_changes_them_is_read_by_item(task):
    found = read(Doubled(X, Y), task, client="who")
    assert torch.equal(samples(found)[0], 2 * X)
    assert found.owner.tolist() == OWNER
    named = TensorDataset(X, Y)
    named.who = WHO
    assert read(named, task, client="who").owner.tolist() == OWNER


def test_what_differs_with_the_kind_of_model():
    mapped = {"x": X, "y": Y}
    assert torch.equal(samples(read(mapped, "module"))[0], X)
    with pytest.raises(flfast.ConfigError, match="data= is of type dict; allowed: "):
        read(mapped, "classification")
    triples = (X, Y, torch.tensor(OWNER))
    assert read(triples, "module").owner is None  # a module's batch may have three parts
    assert read(triples, "classification").owner.tolist() == OWNER
    with pytest.raises(flfast.ConfigError, match="data= names clients twice"):
        read(triples, "classification", client=WHO)
    for data, clients in (((X, Y), WHO), ([DATA], None)):  # those of the test set are a second
        with pytest.raises(flfast.ConfigError, match="data= names clients twice"):
            read(data, "classification", triples, client=clients)
    loader = DataLoader(DATA, collate_fn=list)
    assert read(loader, "module").batch_size == 1
    with pytest.raises(flfast.ConfigError, match="has a collate_fn"):
        read(loader, "classification")


@pytest.mark.parametrize("task", TASKS)
def test_a_frame_an_examples_and_a_function_are_read_alike_for_both(task):
    frame = pd.DataFrame(X.numpy(), columns=[*"uvw"]).assign(y=Y.numpy(), who=WHO)
    found = read(frame, task, target="y", client="who")
    assert (found.task, found.owner.tolist()) == ("classification", OWNER)
    for own, expected in zip(samples(found), (X, Y), strict=True):
        assert torch.equal(own, expected)
    with pytest.raises(flfast.ConfigError, match="labels= with data= of type DataFrame; allowed"):
        read(frame, task, target="y", labels=1)
    with pytest.raises(flfast.ConfigError, match="test_data= is of type tuple; allowed: a DataFr"):
        read(frame, task, (X, Y), target="y")
    examples = Examples(X, Y, 4)
    for given in (examples, lambda: examples):
        assert read(given, task) is given
        with pytest.raises(flfast.ConfigError, match="an Examples names its own test set"):
            read(given, task, client=WHO)
