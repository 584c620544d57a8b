"""Batches of a user's samples are those of the user's own DataLoader, in memory or not."""

import random
from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._pytree import tree_flatten
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.fetching import Loading, make_fetch
from flfast.datamodules.own_samples import OwnData, as_samples, own_examples, values_of
from flfast.datamodules.partitions.iid import iid
from flfast.datamodules.partitions.natural import natural
from flfast.datamodules.samples import CollatedSamples, SamplePart, StackedSamples, samples_of
from flfast.datamodules.splits import Split
from flfast.datamodules.transforms import BatchTransform
from flfast.tasks.by_name import TASKS

Pair = namedtuple("Pair", "first second")


@dataclass
class Sample:
    """A sample that torch cannot join itself."""

    x: torch.Tensor
    name: str


class Listed:
    """A map-style dataset of given samples."""

    def __init__(self, samples, **about):
        self.samples = samples
        vars(self).update(about)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def leaf(draw, kind, row):
    values = row * 7 + draw
    return {
        "float": lambda: torch.full((2, 3), values / 3),
        "int": lambda: int(values),
        "real": lambda: values / 7,
        "array": lambda: np.full(3, values, np.int32),
        "scalar": lambda: np.float32(values),
        "bool": lambda: torch.tensor(values % 2 == 0),
        "text": lambda: f"name {values}",
        "ragged": lambda: torch.zeros(1 + row % 2),
    }[kind]()


KINDS = st.sampled_from(["float", "int", "real", "array", "scalar", "bool"])
STRUCTURES = st.recursive(
    KINDS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
    ),
    max_leaves=5,
)


def made(structure, row, place=0):
    if isinstance(structure, str):
        return leaf(place, structure, row)
    if isinstance(structure, dict):
        return {k: made(v, row, place + n) for n, (k, v) in enumerate(structure.items())}
    parts = [made(part, row, place + n) for n, part in enumerate(structure)]
    return type(structure)(*parts) if isinstance(structure, Pair) else type(structure)(parts)


def equal(found, expected):
    (own, spec), (theirs, kind) = tree_flatten(found), tree_flatten(expected)
    assert spec == kind
    for one, other in zip(own, theirs, strict=True):
        if isinstance(other, torch.Tensor):
            assert_close(one, other, rtol=0, atol=0)
        else:
            assert one == other


def batches(examples, order, **loading):
    fetch = make_fetch(examples, Loading(4, **loading))
    return [inputs for inputs, _ in fetch([np.array(index) for index in order])]


ORDER = [[0, 3, 1], [4], [2, 4, 0, 1]]


@settings(max_examples=60, deadline=None)
@given(STRUCTURES, st.booleans())
def test_batches_of_any_structure_are_those_of_the_users_loader(structure, wrapped):
    samples = [made(structure, row) for row in range(5)]
    part = SamplePart(Listed(samples))
    if wrapped:
        part = SamplePart(part.dataset, lambda s: SimpleNamespace(b=default_collate(s)))
    found = read(part)
    assert isinstance(found.inputs, CollatedSamples if wrapped else StackedSamples)
    loader = DataLoader(part.dataset, batch_sampler=ORDER, collate_fn=part.collate)
    for one, other in zip(batches(found, ORDER), loader, strict=True):
        equal(*((one.b, other.b) if wrapped else (one, other)))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["text", "ragged", "tensors", "dataclass"])
def test_samples_that_are_no_rows_are_joined_by_the_users_own_function(kind, workers):
    collate = {"ragged": padded, "dataclass": joined}.get(kind, default_collate)
    samples = [{"x": torch.ones(2) * row, "y": row} for row in range(5)]
    if kind in {"text", "ragged"}:
        samples = [{**one, "z": leaf(0, kind, row)} for row, one in enumerate(samples)]
    if kind == "dataclass":
        samples = [Sample(one["x"], "a" * one["y"]) for one in samples]
    part = SamplePart(Listed(samples), collate)
    found = read(part)
    assert isinstance(found.inputs, StackedSamples) == (kind == "tensors")
    loader = DataLoader(part.dataset, batch_sampler=ORDER, collate_fn=collate)
    for one, other in zip(batches(found, ORDER, num_workers=workers), loader, strict=True):
        equal(one, other)


def padded(samples):
    rows = torch.nn.utils.rnn.pad_sequence([one["z"] for one in samples], batch_first=True)
    return {"z": rows, "num": len(samples)}


def joined(samples):
    return {"x": torch.stack([one.x for one in samples]), "names": [one.name for one in samples]}


def read(*parts, client=None, test_client=None, labels=None):
    train, test, val = [*parts, None, None][:3]
    return own_examples(OwnData(train, test, val, client, test_client), labels)


TENSORS = TensorDataset(torch.randn(20, 3), torch.arange(20) % 4)


@pytest.mark.parametrize(
    "dataset",
    [
        TENSORS,
        Subset(TENSORS, [3, 1, 18]),
        ConcatDataset([TENSORS, Subset(TENSORS, [2])]),
        StackDataset(x=TENSORS.tensors[0], y=TENSORS.tensors[1]),
        [(torch.ones(2), 1), (torch.zeros(2), 0)],
    ],
)
def test_tensors_are_read_once(dataset):
    found = samples_of(SamplePart(dataset))
    assert isinstance(found, StackedSamples)
    equal(
        found.index_select(0, torch.tensor([1, 0])),
        next(iter(DataLoader([dataset[1], dataset[0]], 2))),
    )


def no_mask(samples):
    return {"x": torch.stack(samples), "mask": None, "others": [None]}


@pytest.mark.parametrize("workers", [0, 1])
def test_none_keeps_no_sample_out_of_memory(workers):
    found = read(SamplePart(Listed([*torch.randn(5, 3)]), no_mask))
    assert isinstance(found.inputs, StackedSamples)
    assert len(found.inputs.leaves) == 1
    (batch,) = batches(found, [[2, 0]], num_workers=workers)
    equal(batch, no_mask([found.inputs.leaves[0][2], found.inputs.leaves[0][0]]))


def test_a_dataset_of_tensors_is_not_copied():
    found = samples_of(SamplePart(TENSORS))
    assert found.leaves[0].data_ptr() == TENSORS.tensors[0].data_ptr()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(1),
        lambda: torch.tensor([random.random()]),
        lambda: torch.tensor([np.random.rand()]),  # noqa: NPY002
        lambda: torch.tensor([GENERATOR.random()]),
        lambda: torch.zeros(1) if torch.rand(1) > 1e-6 else torch.ones(1),
    ],
)
def test_what_is_random_stays_random_and_no_generator_moves(draw):
    class Random(Listed):
        def __getitem__(self, index):
            return draw()

    numpy = np.random.get_state
    before = torch.get_rng_state(), random.getstate(), numpy()[1].tolist()
    found = samples_of(SamplePart(Random([0] * 5)))
    assert isinstance(found, CollatedSamples)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), numpy()[1].tolist())


GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize(
    "collate",
    [
        lambda s: torch.stack(s) + torch.rand(()),
        lambda s: torch.stack(s) * len(s),
        lambda s: torch.stack(s).flip(0),
        lambda s: torch.stack(s)[:1],
        lambda s: (torch.stack(s), "about"),
        lambda s: torch.stack(s).to_sparse(),
        lambda s: 1 / 0,
    ],
)
def test_a_batch_that_is_more_than_its_rows_is_joined_each_time(collate):
    assert isinstance(
        samples_of(SamplePart(Listed([*torch.randn(5, 3)]), collate)), CollatedSamples
    )


def test_samples_that_do_not_fit_stay_where_they_are(monkeypatch):
    monkeypatch.setattr("flfast.datamodules.samples.free_memory", lambda: 3 * 5 * 12 - 1)
    assert isinstance(samples_of(SamplePart(Listed([*torch.randn(5, 3)]))), CollatedSamples)


def test_each_part_has_its_own_function():
    test = SamplePart(Listed([*torch.ones(2, 3)]), lambda s: {"x": torch.stack(s)})
    found = read(SamplePart(Listed([*torch.zeros(5, 3)])), test)
    one, other = batches(found, [[0, 4], [5, 6]])
    equal(one, torch.zeros(2, 3))
    equal(other, {"x": torch.ones(2, 3)})
    assert found.is_test.tolist() == [False] * 5 + [True] * 2


def test_a_part_with_other_shapes_is_read_each_time():
    found = read(SamplePart(TENSORS), SamplePart(TensorDataset(torch.ones(2, 5))))
    assert isinstance(found.inputs, CollatedSamples)


# Clients and labels of any dataset.

NAMES = ["b", "a", "b", "c", "a"]
SITES = Listed(
    [{"x": torch.ones(2), "site": n, "y": i % 2} for i, n in enumerate(NAMES)], site=NAMES
)


@pytest.mark.parametrize(
    "client",
    [NAMES, tuple(NAMES), np.array(NAMES), "site", lambda sample: sample["site"]],
)
def test_owners_of_every_spelling(client):
    for dataset in (SITES, Subset(SITES, range(5)), ConcatDataset([SITES])):
        found = read(SamplePart(dataset), client=client)
        assert found.owner.tolist() == [1, 0, 1, 2, 0]
        assert found.client_names == ("a", "b", "c")
        assert found.labels.tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("client", [[3, 1, 3], torch.tensor([3, 1, 3]), 1, lambda s: s[1]])
def test_names_are_shown_as_written(client):
    dataset = [(torch.zeros(2), torch.tensor(name)) for name in (3, 1, 3)]
    found = read(SamplePart(dataset), SamplePart(dataset), client=client)
    assert found.client_names == ("1", "3")
    assert found.owner.tolist() == [1, 0, 1, -1, -1, -1]
    own_tests = read(SamplePart(dataset), SamplePart(dataset), client=client, test_client=1)
    assert own_tests.owner.tolist() == [1, 0, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("labels", "found", "names"),
    [
        (None, [0, 1, 0, 1, 0], ()),
        ("site", [1, 0, 1, 2, 0], ("a", "b", "c")),
        ([3, 3, 0, 1, 1], [3, 3, 0, 1, 1], ()),
        (lambda s: s["y"] == 1, [0, 1, 0, 1, 0], ()),
        ([-1, 5, 5, -1, 5], [0, 1, 1, 0, 1], ("-1", "5")),
    ],
)
def test_labels_of_every_spelling(labels, found, names):
    examples = read(SamplePart(SITES), labels=labels)
    assert examples.labels.tolist() == examples.targets.tolist() == found
    assert examples.class_names == names
    assert examples.num_classes == max(found) + 1


@pytest.mark.parametrize(
    ("dataset", "labels"),
    [
        (Listed([torch.zeros(2)] * 3, targets=[2, 0, 1]), [2, 0, 1]),
        (Listed([torch.zeros(2)] * 3, labels=torch.tensor([2, 0, 1])), [2, 0, 1]),
        (Listed([torch.zeros(2)] * 3), None),
        (Listed([(torch.zeros(2), 0.5)] * 3), None),
        (Listed([(torch.zeros(2), torch.ones(3, dtype=torch.int64))] * 3), None),
        (Listed([(torch.zeros(2), {"y": 3})] * 3), None),
        (Listed([(torch.zeros(2), n) for n in (-1, 0, 1)]), None),
        (Listed([(torch.zeros(2), n) for n in (10**6, 0, 1)]), None),
        (Listed([(torch.zeros(2), torch.tensor([n])) for n in (2, 0, 1)]), [2, 0, 1]),
        (Listed([{"y": np.int64(n)} for n in (2, 0, 1)]), [2, 0, 1]),
        (Listed([(torch.zeros(2), torch.ones(n, dtype=torch.int64)) for n in (1, 2, 3)]), None),
        (Listed([("text", "label")] * 3), None),
    ],
)
def test_labels_are_found_where_they_are(dataset, labels):
    found = read(SamplePart(dataset))
    assert (None if found.labels is None else found.labels.tolist()) == labels
    assert found.targets.tolist() == (labels or [0, 0, 0])
    assert (found.classes is None) == (labels is None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"client": "where"}, "client=where: allowed: an attribute of the Dataset"),
        ({"client": "where"}, "which has "),
        ({"labels": ["a"]}, "labels=a list: 1 values for 5 samples; allowed: one for each"),
        ({"client": ["a", None, "a", "a", "a"]}, "client=a list: 1 of 5 values are missing"),
        ({"labels": ["a", None, "a", "a", "a"]}, "labels=a list: 1 of 5 values are missing"),
        (
            {"client": NAMES, "test_client": [*"aaaad"]},
            "test_data=: client d has no examples",
        ),
    ],
)
def test_what_is_not_there_is_said(options, said):
    with pytest.raises(ValueError, match=said):
        read(SamplePart(SITES), SamplePart(SITES), **options)


def test_a_users_own_error_stays_what_it_is():
    with pytest.raises(ZeroDivisionError):
        values_of("client", lambda sample: 1 / 0, SITES)


# The data of flfast for a module, and those of a module in a population.


def test_examples_of_every_task_become_samples(examples_of):
    for task in set(TASKS) - {"module"}:
        given = examples_of(task)
        found = as_samples(given)
        assert found.task == "module"
        assert (found.classes is None) == (given.classes is None)
        (batch,) = batches(found, [[2, 0]])
        equal(batch, [given.inputs[[2, 0]], given.targets[[2, 0]]])


@pytest.fixture
def examples_of():
    targets = {
        "classification": torch.tensor([0, 2, 1]),
        "language": torch.tensor([[1, 2, 0]] * 3),
        "regression": torch.rand(3, 3),
        "multilabel": torch.ones(3, 3),
        "survival": torch.tensor([[3.5, 1]] * 3),
        "forecasting": torch.ones(3, 4, 3),
        "segmentation": torch.zeros(3, 1, 2, dtype=torch.uint8),
    }
    return lambda task: Examples(
        torch.rand(3, 1, 4), targets[task], 1 if task == "survival" else 3, task=task
    )


def population(examples, *, partition=iid, val=0.1, samples=True, **options):
    if partition is iid:
        partition = partial(iid, num_clients=3, min_samples=1)
    data = FederatedDataModule(
        *(lambda: examples, partition),
        seed=0,
        split=Split(val, 0.1),
        loading=Loading(4, samples=samples),
        **options,
    )
    data.setup()
    return data


def test_data_of_flfast_are_divided_as_for_other_models():
    given = Examples(
        torch.rand(60, 3), torch.arange(60) % 3, 3, transform=BatchTransform((0.5,), (2.0,))
    )
    plain, own = population(given, samples=False), population(given)
    for one, other in zip(
        plain.client(1).train_dataloader(), own.client(1).train_dataloader(), strict=True
    ):
        batch = own.client(1).augmented(other.inputs, dtype=torch.float32)
        equal(batch, [plain.client(1).augmented(one.inputs, dtype=torch.float32), one.targets])


def test_a_validation_set_of_the_data_is_central():
    found = read(SamplePart(TENSORS), None, SamplePart(Subset(TENSORS, range(6))))
    data = population(found, val=0.5)
    assert data.central_val.tolist() == [*range(20, 26)]
    assert sorted(data.splits["train"].indices) + sorted(data.splits["test"].indices) != []
    assert len(data.splits["val"].indices) == 0
    assert max(data.splits["train"].indices.max(), data.splits["test"].indices.max()) < 20
    sizes = [len(batch.targets) for batch in data.client(0).val_dataloader()]
    assert sizes == [4, 2]


def test_clients_of_the_data_are_those_of_the_run():
    found = read(SamplePart(SITES), SamplePart(SITES), client="site", test_client="site")
    data = population(found, partition=partial(natural, group_size=1, rest="smaller"))
    assert data.client_names == ("a", "b", "c")
    assert [len(data.splits["test"].indices_of(k)) for k in range(3)] == [2, 2, 1]


def test_what_needs_tensors_says_so():
    data = population(read(SamplePart(TENSORS)))
    with pytest.raises(ValueError, match="a module's own samples"):
        data.relabel([0], lambda labels, _: labels)
    with pytest.raises(ValueError, match="a backdoor in the batches of a LightningModule"):
        data.poison([0], None)
    with pytest.raises(ValueError, match="the partition compares inputs"):
        population(read(SamplePart(TENSORS)), partition=lambda inputs: None)
