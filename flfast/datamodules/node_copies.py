"""One copy of large arrays for all ranks of a node."""

import copyreg
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from flfast.datamodules.mapped import map_array, shared_tensor
from flfast.distributed.world import World, gather


def share_on_node(world: World, value: Any) -> Any:
    """The value of local rank 0, with one copy of its arrays for all ranks of a node; collective.

    The copy is a file in memory without a name, which ends with its processes. What a rank writes
    there stays its own. If the value cannot be shared, the other ranks get None.
    """
    if world.size == 1 or not hasattr(os, "memfd_create"):
        return value
    name = f"flfast-{os.urandom(16).hex()}"
    with os.fdopen(os.memfd_create(name), "wb") as file:
        offer = f"/proc/{os.getpid()}/fd/{file.fileno()}", name, _write(value, file)
        found = _read(*gather(world, offer)[world.rank - world.local_rank])
        gather(world, None)  # all have opened it
    return value if found is None else found


def _write(value: object, file: BinaryIO) -> list[slice] | None:
    """Write a pickle, and arrays behind it; returns their places, or None if that cannot be."""
    arrays, places = list[memoryview](), list[slice]()
    pickler = pickle.Pickler(file, 5, buffer_callback=lambda array: arrays.append(array.raw()))
    pickler.dispatch_table = copyreg.dispatch_table | {torch.Tensor: _reduced}
    with suppress(Exception):  # too little memory, or one of many errors of pickling
        pickler.dump(value)
        for array in arrays:
            start = file.seek(-file.tell() % 64, os.SEEK_CUR)
            places.append(slice(start, start + file.write(array)))
        file.flush()
        return places
    return None


def _read(path: str, name: str, places: list[slice] | None) -> Any:
    """What is in a file; None on another node, and where it cannot be opened or unpickled."""
    with suppress(Exception):
        if places is not None and name in str(Path(path).readlink()):
            whole = np.memmap(path, mode="c").data
            return pickle.loads(whole, buffers=[whole[place] for place in places])
    return None


def _reduced(value: torch.Tensor) -> tuple[Any, ...]:
    """A tensor as the .npy file that it maps, or as an array."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *path = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in span.split("-"))
        if start <= value.data_ptr() < end and inode != "0":
            return _mapped, (Path(*path), value.numpy().dtype, value.shape)
    if value.is_contiguous():
        return torch.from_numpy, (value.numpy(),)
    whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
    return torch.as_strided, (whole, value.shape, value.stride(), value.storage_offset())


def _mapped(path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    array = map_array(path)
    if (array.dtype, array.shape) != (dtype, shape):
        raise ValueError("a part of a file")
    return shared_tensor(array)
