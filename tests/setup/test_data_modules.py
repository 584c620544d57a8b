"""What is behind a LightningDataModule's loaders is what clients train with."""

import lightning as L
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from flfast.datamodules.own_samples import own_examples
from flfast.datamodules.samples import CollatedSamples, StackedSamples
from flfast.setup.data_modules import load, read_forms

DATA = TensorDataset(torch.randn(12, 3), torch.arange(12) % 4)


class Module(L.LightningDataModule):
    """Gives the loaders that it was made with, and notes what is called."""

    def __init__(self, *, train=None, val=None, test=None, clients=None):
        super().__init__()
        self.loaders, self.called = {"train": train, "val": val, "test": test}, []
        if clients is not None:
            self.clients = clients

    def prepare_data(self):
        self.called.append("prepare")

    def setup(self, stage):
        self.called.append(stage)

    def train_dataloader(self):
        given = self.loaders["train"]
        return given if given is not None else DataLoader(DATA, batch_size=5, shuffle=True)

    def val_dataloader(self):
        return self.loaders["val"]

    def test_dataloader(self):
        return self.loaders["test"]


def read(data, test_data=None, client=None, labels=None):
    return own_examples(read_forms(data, test_data, client, samples=True), labels)


class Stream(IterableDataset):
    """No length."""

    def __iter__(self):
        return iter(DATA)


class Own(DataLoader):
    """Batches of its own."""

    def __iter__(self):
        yield from ()


class Even(RandomSampler):
    """A sampler of a user's."""


def test_a_module_is_prepared_and_set_up_as_lightning_does(monkeypatch):
    module = Module()
    assert load("data=", module).batch_size == 5
    assert module.called == ["prepare", "fit", "test"]
    monkeypatch.setenv("LOCAL_RANK", "1")
    load("data=", module)
    assert module.called.count("prepare") == 1


def test_loaders_are_the_parts():
    val, test = Subset(DATA, [1, 2]), Subset(DATA, [3])
    module = Module(val=DataLoader(val, shuffle=True), test=DataLoader(test))
    found = read(module)
    assert len(found.targets) == 15
    assert found.is_test.nonzero()[0].tolist() == [12]
    assert found.is_val.nonzero()[0].tolist() == [13, 14]
    assert isinstance(found.inputs, StackedSamples)
    assert found.datamodule is module
    assert found.batch_size == 5
    assert found.labels[:12].tolist() == DATA.tensors[1].tolist()


def test_the_collate_function_of_a_loader_joins():
    def collate(samples):
        return {"x": default_collate(samples)[0], "text": "about"}

    found = read(Module(train=DataLoader(DATA, 2, collate_fn=collate)))
    assert isinstance(found.inputs, CollatedSamples)
    assert found.inputs.collate([found.inputs[0], found.inputs[1]])["text"] == "about"


def test_lightnings_own_demos():
    found = read(BoringDataModule())
    assert (len(found.targets), found.is_test.sum(), found.is_val.sum()) == (192, 64, 64)
    found = read(BoringModel())  # a model with loaders
    assert found.datamodule is None
    assert found.labels is None
    made = L.LightningDataModule.from_datasets(train_dataset=DATA, batch_size=3)
    assert load("data=", made).batch_size == 3
    assert load("data=", made).val is None


def test_of_several_loaders_for_tests_the_first_is_used_and_the_others_are_named(caplog):
    loaders = {"a": DataLoader(Subset(DATA, [0])), "b": DataLoader(DATA), "c": DataLoader(DATA)}
    for several in (loaders, [*loaders.values()], CombinedLoader(loaders)):
        assert len(load("data=", Module(test=several)).test.dataset) == 1
    assert "test_dataloader: of its loaders, a is used, and ['b', 'c'] not" in caplog.text


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 12, 12)), "WeightedRandomSampler"),
        (DataLoader(DATA, sampler=Even(DATA)), "draws by Even"),
        (
            DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)),
            "draws by RandomSampler",
        ),
        (DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=3)), "draws by RandomSampler"),
        (DataLoader(DATA, sampler=range(3)), "draws by range"),
        (DataLoader(DATA, batch_sampler=[[0, 1], [2]]), "draws by list"),
        (DataLoader(DATA, batch_size=None), "draws by NoneType"),
        (DataLoader(Stream()), "Stream is an IterableDataset"),
        (Own(DATA), "gives a Own; allowed: torch's DataLoader"),
        ([1, 2], "gives 2 loaders; allowed: one DataLoader"),
        ({"a": DataLoader(DATA)}, "gives 1 loaders; allowed: one DataLoader"),
        (CombinedLoader([DataLoader(DATA)] * 3), "gives 3 loaders; allowed: one DataLoader"),
    ],
)
def test_loaders_that_clients_cannot_have_are_refused(train, said):
    with pytest.raises(ValueError, match=f"data=: train_dataloader.*{said}"):
        load("data=", Module(train=train))


def test_a_module_without_a_training_loader_is_refused():
    with pytest.raises(ValueError, match="data=: gives no train_dataloader"):
        load("data=", L.LightningDataModule())


@pytest.mark.parametrize("mapped", [True, False])
def test_a_module_may_have_clients(mapped):
    names = ["b"] * 4 + ["a"] * 8
    parts = {"b": Subset(DATA, range(4)), "a": Subset(DATA, range(4, 12))}
    found = read(Module(clients=parts if mapped else names))
    assert found.client_names == ("a", "b")
    assert found.owner.tolist() == [1] * 4 + [0] * 8
    named = read(Module(clients=names), client=["x"] * 12)
    assert named.client_names == ("x",)


# Other forms of data.

X, Y = DATA.tensors


@pytest.mark.parametrize(
    "data",
    [
        {"x": X, "y": Y},
        {"x": X.numpy(), "y": Y.numpy()},
        (X, Y),
        [X, Y],
        DATA,
        [*DATA],
        {"a": DATA},
        [DATA],
    ],
)
def test_every_form_of_the_same_samples_is_read_alike(data):
    found = read(data, data, None, None)
    assert isinstance(found.inputs, StackedSamples)
    assert [leaf.tolist() for leaf in found.inputs.leaves] == [[*t.tolist()] * 2 for t in (X, Y)]
    assert found.labels[:12].tolist() == Y.tolist()
    assert found.is_test.tolist() == [False] * 12 + [True] * 12


def test_a_dataset_for_each_client_is_taken_as_it_is():
    parts = {"north": Subset(DATA, [0, 1]), "east": Subset(DATA, [2]), "10": DATA, "9": DATA}
    found = read(parts, {"10": DATA, "east": DATA}, None, None)
    assert found.client_names == ("10", "9", "east", "north")
    assert found.owner.tolist() == [3, 3, 2, *[0] * 12, *[1] * 12, *[0] * 12, *[2] * 12]
    numbered = read([DATA, Subset(DATA, [1])], DATA, None, None)
    assert numbered.owner.tolist() == [0] * 12 + [1] + [-1] * 12
    assert numbered.client_names == ()


class Bare:
    """A Dataset that has no class of torch's, as those of the library datasets."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return DATA[index]


def test_datasets_of_any_class_are_those_of_clients():
    found = read({"b": Bare(), "a": Bare()}, None, None, None)
    assert found.client_names == ("a", "b")
    with pytest.raises(ValueError, match="data=: train and test are no clients"):
        read({"train": Bare(), "test": Bare()}, None, None, None)


def test_test_samples_that_say_whose_they_are_are_the_clients_own():
    data = {"x": X, "who": [*"abcabcabcabc"]}
    assert read(data, data, "who", None).owner.tolist() == [0, 1, 2] * 8
    assert read(data, {"x": X}, "who", None).owner[12:].tolist() == [-1] * 12
    assert read(data, data, [*"abcabcabcabc"], None).owner[12:].tolist() == [-1] * 12


class Broken(Dataset):
    """No item can be read."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise KeyError(index)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "data=: "),
        ((), "data=: "),
        ({"x": X, "y": Y[:3]}, "data=: Size mismatch between datasets; allowed: a Lightning"),
        ({"x": X, "y": 3}, "data=: .*allowed: a LightningDataModule"),
        ({1: X}, "data=: .*keywords must be strings"),
        (
            {"a": DATA, "b": Subset(DATA, [])},
            "data=: client b has no sample; allowed: one or more",
        ),
        (Subset(DATA, []), "a Dataset has no sample"),
        (
            Stream(),
            "data= is a Stream; allowed: a LightningDataModule, a DataLoader, a map-style Dataset",
        ),
        (3, "data= is a int; allowed: a LightningDataModule"),
    ],
)
def test_other_forms_are_refused(data, said):
    with pytest.raises(ValueError, match=said):
        read(data, None, None, None)


def test_clients_are_named_once():
    with pytest.raises(ValueError, match="client= with Datasets of clients as data="):
        read([DATA, DATA], None, "y", None)


def test_what_a_dataset_raises_is_not_hidden():
    with pytest.raises(KeyError):
        read(Broken(), None, None, None)
