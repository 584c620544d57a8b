"""Examples are in memory once per node; real processes."""

import re
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sampling import others_slow
from tables import timeless
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.mapped import map_array, shared_tensor
from flfast.datamodules.node_copies import share_on_node

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each rank has a copy")

QUICK = ("experiment=quick", "rounds=1", "callbacks=none", "strategy=ddp", "trainer.devices=2")
DATA = ("data=synthetic", "data.shape=[1024]", "data.num_examples=400", "data.num_test=100")


def examples(inputs):
    num = len(inputs)
    return Examples(inputs, torch.arange(num) % 2, 2, owner=np.arange(num), class_names=("a", "ä"))


def file_of(values):
    """Number of the file that values are mapped from; 0 if they are in no file."""
    address = values.data_ptr() if isinstance(values, Tensor) else values.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = re.match(r"(\w+)-(\w+)", line).groups()
        if int(start, 16) <= address < int(end, 16):
            return int(line.split()[4])
    raise AssertionError


def shared(world, value):
    return share_on_node(world, None if world.local_rank else value)


LAYOUTS = {
    "contiguous": lambda values: values,
    "permuted": lambda values: values.permute(0, 2, 1),
    "part": lambda values: values[200:, 1:],
}


@pytest.mark.parametrize("layout", others_slow(LAYOUTS, ["part"]))
def test_ranks_share_one_copy_and_write_alone(in_world, layout):
    dtypes = (torch.uint8, torch.float32, torch.int64, torch.bool)
    values = LAYOUTS[layout](torch.arange(6000).view(1000, 3, 2))

    def work(world):
        return [copies(world, examples(values.to(dtype)), dtype) for dtype in dtypes]

    def copies(world, given, dtype):
        found = shared(world, given)
        same = torch.equal(found.inputs, given.inputs) and found.inputs.dtype == dtype
        same &= found.inputs.stride() == given.inputs.stride()
        same &= torch.equal(found.targets, given.targets)
        same &= np.array_equal(found.owner, given.owner)
        same &= found.class_names == given.class_names
        files = {file_of(values) for values in (found.inputs, found.targets, found.owner)}
        torch.distributed.barrier()
        found.inputs.fill_(world.rank)
        torch.distributed.barrier()
        alone = bool((found.inputs == torch.tensor(world.rank).to(dtype)).all())
        return same, alone, files, file_of(given.inputs)

    for found in zip(*in_world(2, work).values(), strict=True):
        assert all(same and alone and before == 0 for same, alone, _, before in found)
        assert found[0][2] == found[1][2]
        assert len(found[0][2]) == 1


def test_a_world_of_one_rank_keeps_the_object(in_world):
    value = object()
    assert in_world(1, lambda world: shared(world, value) is value) == {0: True}


def in_a_file(folder):
    np.save(folder / "inputs.npy", np.arange(200, dtype=np.float32).reshape(50, 4))
    return shared_tensor(map_array(folder / "inputs.npy"))


def test_a_file_is_mapped_by_every_rank(in_world, tmp_path):
    value = in_a_file(tmp_path)

    def work(world):
        found = shared(world, value)
        return torch.equal(found, value), file_of(found)

    inode = (tmp_path / "inputs.npy").stat().st_ino
    assert in_world(2, work) == {0: (True, inode), 1: (True, inode)}


# What cannot be shared, by reason.
OTHERS = {
    "part of a file": lambda folder: in_a_file(folder)[10:],
    "closure": lambda folder: lambda: folder,
    "limit": lambda folder: torch.zeros(1 << 20),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_what_cannot_be_shared_stays_where_it_is(in_world, tmp_path, reason):
    value = OTHERS[reason](tmp_path)

    def work(world):
        if reason == "limit":  # as if no memory were left for the file
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, -1))
        found = shared(world, value)
        return "own" if found is value else found

    assert in_world(2, work) == {0: "own", 1: None}


@pytest.mark.slow
def test_numbers_are_those_of_own_copies(flfast_run):
    """A limit of files, smaller than the data, lets each rank load its own."""
    words = (*QUICK, *DATA, "engine=eager", "model.hidden=[8]")
    one = flfast_run(*words, run_dir="shared")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        two = flfast_run(*words, run_dir="own")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert timeless(one) == timeless(two)


def test_what_one_rank_refuses_for_its_node_is_refused_without_its_number(flfast_run, capfd):
    with pytest.raises(SystemExit):
        flfast_run(*QUICK, "data=synthetic", "data.num_examples=3", "data.num_clients=4")
    message = capfd.readouterr().err
    assert "each client needs an example" in message
    assert "rank" not in message
