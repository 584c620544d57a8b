"""A node of a deployment has the rows of its client in a simulation, in the same order."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import others_slow

from flfast.config.composition import compose, without_hydra
from flfast.config.own import Own
from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.fetching import Loading
from flfast.datamodules.partitions.natural import natural
from flfast.datamodules.partitions.whole import whole
from flfast.datamodules.splits import Split
from flfast.setup.build import build_data

NATURAL = partial(natural, group_size=1, rest="smaller")
NAMES = "train", "val", "test"


def data_of(examples, partition, split, *, client=None, seed=3):
    data = FederatedDataModule(
        lambda: examples, partition, seed=seed, split=split, loading=Loading(10), client=client
    )
    data.setup()
    return data


def examples_of(rows, owner, is_test):
    return Examples(
        rows[:, None].float(),
        rows % 3,
        3,
        owner=owner,
        is_test=is_test if is_test.any() else None,
    )


def rows_of(data, name, client_id):
    examples = data.examples
    return [examples.inputs[i] for i in data.splits[name].indices_of(client_id).tolist()]


def assert_same_rows(node, simulation, client_id):
    for name in NAMES:
        found, expected = (rows_of(data, name, client_id) for data in (node, simulation))
        assert len(found) == len(expected), name
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True)), name
    assert node.held_out.tolist() == simulation.held_out.tolist()
    assert not len(node.central_test)


FRACTIONS = st.sampled_from((0.0, 0.1, 0.25, 0.4))


@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    marks=st.lists(st.booleans(), min_size=48, max_size=48),
    split=st.builds(
        Split,
        val=FRACTIONS,
        test=FRACTIONS,
        clients=st.sampled_from((0, 1, 0.3)),
        few_shot=st.sampled_from((None, 1, 3)),
        server_examples=st.just(0),
    ),
    seed=st.integers(0, 5),
    data=st.data(),
)
@settings(max_examples=25)
def test_rows_are_those_of_a_simulation_for_all_keys_of_split(sizes, marks, split, seed, data):
    owner = np.array(data.draw(st.permutations(np.repeat(np.arange(len(sizes)), sizes).tolist())))
    is_test = np.array(marks[: len(owner)])
    for client_id in range(len(sizes)):  # each has an example to train on
        is_test[np.flatnonzero(owner == client_id)[0]] = False
    rows = torch.arange(len(owner))
    simulation = data_of(examples_of(rows, owner, is_test), NATURAL, split, seed=seed)
    for client_id in range(len(sizes)):
        own, number = owner == client_id, (client_id, len(sizes))
        mine, marked = rows[torch.from_numpy(own)], is_test[own]
        alone = examples_of(mine, None, marked)
        node = data_of(alone, whole, split, client=number, seed=seed)
        assert_same_rows(node, simulation, client_id)
        named = examples_of(mine, np.zeros(len(mine), int), marked)
        node = data_of(named, NATURAL, split, client=number, seed=seed)
        assert_same_rows(node, simulation, client_id)


def table(folder, rng, owners):
    """Files of all rows, and of each client: (settings, settings of nodes) beside the path."""
    pytest.importorskip("pyarrow")
    lines = [
        f"{a:.3f},{b:.3f},{i % 2},s{who},{'test' if i % 5 == 0 else 'train'}"
        for i, (who, (a, b)) in enumerate(zip(owners, rng.normal(size=(90, 2)), strict=True))
    ]
    for name, own in files(owners):
        text = "\n".join(["a,b,target,site,part", *(lines[i] for i in own)])
        (folder / f"{name}.csv").write_text(text)
    common = "data=table", "data.is_test=part", "data.standardise=none", "data.owner=site"
    return common, "data.path={}.csv"


def arrays(folder, rng, owners):
    inputs, targets = rng.normal(size=(90, 4)).astype(np.float32), np.arange(90) % 2
    for name, own in files(owners):
        marks = {"owner": owners[own], "is_test": own % 5 == 0}
        np.savez(folder / f"{name}.npz", inputs=inputs[own], targets=targets[own], **marks)
    return ("data=npz",), "data.root={}.npz"


def series(folder, rng, owners):
    pytest.importorskip("pyarrow")
    lines = [f"s{who},{x:.3f}" for who, x in zip(owners, rng.normal(size=90), strict=True)]
    for name, own in files(owners):
        text = "\n".join(["who,load", *(lines[i] for i in own)])
        (folder / f"{name}.csv").write_text(text)
    sizes = "data.window=3", "data.horizon=1", "data.season=1"
    common = "data=series", "data.owner=who", "data.time=null", *sizes
    return common, "data.path={}.csv"


def files(owners):
    """(name, rows) of the file with all rows, and of each client's."""
    return [("all", np.arange(90)), *((str(k), np.flatnonzero(owners == k)) for k in range(3))]


@pytest.mark.parametrize(
    ("test", "write"),
    others_slow(
        [(test, write) for test in (0.0, 0.1) for write in (table, arrays, series)],
        [(0.1, table), (0.0, series), (0.1, arrays)],
    ),
)
def test_rows_are_those_of_a_simulation_for_all_sources(tmp_path, write, test):
    rng = np.random.default_rng(0)
    common, path = write(tmp_path, rng, np.repeat([2, 0, 1], 30)[rng.permutation(90)])
    split = "split.val=0.1", f"split.test={test}", "partition=natural"

    def built(name, client=None):
        words = *common, *split, path.format(tmp_path / name)
        return build_data(without_hydra(compose([*words, "logger=none"])), Own(client=client))

    simulation = built("all")
    for client_id in range(3):
        assert_same_rows(built(str(client_id), (client_id, 3)), simulation, client_id)
