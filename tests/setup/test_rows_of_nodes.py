"""A node of a deployment has the rows of its client in a simulation, in the same order."""

from functools import partial

import numpy as np
import pytest
import torch
from client_files import (
    NUM_CLIENTS,
    domains,
    hf_images,
    hf_numbers,
    hf_text,
    image_folder,
    instructions,
    npz,
    segmentation_folder,
    series,
    table,
    text_folder,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.config.composition import compose, without_hydra
from flfast.config.own import Own
from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.fetching import Loading
from flfast.datamodules.partitions.natural import natural
from flfast.datamodules.partitions.whole import whole
from flfast.datamodules.splits import Split
from flfast.setup.build_data import build_data

NATURAL = partial(natural, group_size=1, rest="smaller")
NAMES = "train", "val", "test"


def data_of(examples, partition, split, *, client=None, seed=3):
    data = FederatedDataModule(
        lambda: examples,
        partition,
        seed=seed,
        split=split._replace(only=client),
        loading=Loading(10),
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
    rows = data.splits[name].indices_of(client_id).tolist()
    return [(examples.inputs[i], examples.targets[i]) for i in rows]


def assert_equal_split(data, other, client_id, name):
    found, expected = (rows_of(one, name, client_id) for one in (data, other))
    assert len(found) == len(expected), name
    for row, same in zip(found, expected, strict=True):
        assert all(torch.equal(*pair) for pair in zip(row, same, strict=True)), name


def assert_same_rows(node, simulation, client_id):
    for name in NAMES:
        assert_equal_split(node, simulation, client_id, name)
    assert node.held_out.tolist() == simulation.held_out.tolist()
    assert not len(node.central_test)


FRACTIONS = st.sampled_from((0.0, 0.1, 0.25, 0.4))


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    marks=st.lists(st.booleans(), min_size=48, max_size=48),
    split=st.builds(
        Split,
        val=FRACTIONS,
        test=FRACTIONS,
        clients=st.sampled_from((0, 1, 0.3)),
        few_shot=st.sampled_from((None, 1, 3)),
        server_examples=st.just(0),
    ),
    group_size=st.sampled_from((1, 1, 2)),
    seed=st.integers(0, 5),
    data=st.data(),
)
@settings(max_examples=25)
def test_rows_are_those_of_a_simulation_for_all_keys_of_split(
    sizes, marks, split, group_size, seed, data
):
    owner = np.array(data.draw(st.permutations(np.repeat(np.arange(len(sizes)), sizes).tolist())))
    is_test = np.array(marks[: len(owner)])
    for site in range(len(sizes)):  # each has an example to train on
        is_test[np.flatnonzero(owner == site)[0]] = False
    if len(sizes) <= group_size:
        split = split._replace(clients=0)
    rows, partition = torch.arange(len(owner)), partial(NATURAL, group_size=group_size)
    simulation = data_of(examples_of(rows, owner, is_test), partition, split, seed=seed)
    if simulation.num_clients == 1 and not is_test.any():
        whole_of_it = data_of(examples_of(rows, None, is_test), whole, split, seed=seed)
        for name in NAMES:
            assert_equal_split(whole_of_it, simulation, 0, name)
    for client_id in range(simulation.num_clients):
        mine, number = owner // group_size == client_id, (client_id, simulation.num_clients)
        own, sites, marked = rows[torch.from_numpy(mine)], owner[mine], is_test[mine]
        for names, division in ((None, whole), (sites - sites.min(), partition)):
            alone = examples_of(own, names, marked)
            node = data_of(alone, division, split, client=number, seed=seed)
            assert_same_rows(node, simulation, client_id)


ALL, NATURAL_PART, PART = ("all", "natural"), ("part", "natural"), ("part", "whole")
SOURCES = {
    **dict.fromkeys((table, npz, hf_numbers, hf_text, hf_images), (ALL, NATURAL_PART, PART)),
    **dict.fromkeys((series, segmentation_folder, instructions), (ALL, NATURAL_PART, PART)),
    **dict.fromkeys((text_folder, image_folder), (PART,)),  # they know no clients
    domains: (ALL,),  # a part of it is one domain
}
"""What a node reads, all files or those of its client, and how it divides them, by source."""
SPLITS = (
    ("split.val=0.2", "split.test=0.3", "sampler.holdout_clients=1", "seed=4"),
    (),
    ("split.few_shot=3", "split.test=0"),
)


def built(*words, client=None):
    config = compose([*words, "logger=none"])
    return build_data(without_hydra(config), Own(client=client))


CASES = [(write, place) for write in SOURCES for place in range(len(SPLITS))]
QUICK = [case for case in CASES if case[1] == 0 and case[0] not in {hf_numbers, hf_images}]


@pytest.mark.parametrize(
    ("write", "place"),
    [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES],
)
def test_rows_are_those_of_a_simulation_for_all_sources(tmp_path, write, place):
    rng = np.random.default_rng(0)
    files = write(tmp_path, rng, np.repeat([2, 0, 1], 30)[rng.permutation(90)])
    has_classes = write not in {series, instructions}
    split = [word for word in SPLITS[place] if has_classes or "few_shot" not in word]
    simulation = built(*files.words("all"), "partition=natural", *split)
    assert all(len(simulation.splits[name].indices) for name in ("train", "val"))
    for client_id in range(NUM_CLIENTS):  # over all places, each client is each kind of node
        kinds = SOURCES[write]
        part, partition = kinds[(client_id + place) % len(kinds)]
        words = files.words("all" if part == "all" else client_id)
        node = built(*words, f"partition={partition}", *split, client=(client_id, NUM_CLIENTS))
        assert_same_rows(node, simulation, client_id)


@pytest.mark.parametrize(
    ("write", "partition", "reason"),
    [
        (text_folder, "natural", "partition=natural needs data that names its clients"),
        (image_folder, "natural", "partition=natural needs data that names its clients"),
        (domains, "whole", r"data.root=.* images in DOMAIN/CLASS/ of at least two domains"),
    ],
)
def test_what_a_node_cannot_read_alone_is_named(tmp_path, write, partition, reason):
    files = write(tmp_path, np.random.default_rng(0), np.repeat([0, 1, 2], 30))
    with pytest.raises(ValueError, match=reason):
        built(*files.words(1), f"partition={partition}", client=(1, NUM_CLIENTS))


@pytest.mark.parametrize(
    ("write", "settings", "differ"),
    [
        (table, (), False),
        (table, ("data.is_test=null", "data.numeric=[a,b]", "data.categorical=[]"), True),
        (series, (), False),  # its last steps, whoever draws
        (segmentation_folder, ("data.test_fraction=0.2",), True),
        (segmentation_folder, (), False),
    ],
)
def test_a_line_says_which_rows_differ_from_those_of_a_simulation(
    tmp_path, caplog, write, settings, differ
):
    files = write(tmp_path, np.random.default_rng(0), np.repeat([0, 1, 2], 30))
    built(*files.words(1), "partition=whole", *settings, client=(1, NUM_CLIENTS))
    assert ("other ones than in a simulation" in caplog.text) == differ
