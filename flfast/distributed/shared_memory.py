"""One copy of large tensors for all ranks of a node."""

import copyreg
import io
import mmap
import os
import pickle
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from flfast.distributed.world import World, gather


def share_on_node(world: World, value: Any) -> Any:
    """The value of local rank 0, with one copy of its arrays for all ranks of a node; collective.

    The copy is a file in memory without a name, which is gone with its last process. It is no part
    of /dev/shm, which is small in containers. Only the rank itself sees what it writes there.
    A value that cannot be shared stays as it is, and is None on the other ranks.
    """
    if world.size == 1 or not hasattr(os, "memfd_create"):
        return value
    name = f"flfast-{uuid.uuid4().hex}"
    with os.fdopen(os.memfd_create(name), "wb") as file:
        places = None if value is None else _write(value, file)
        offers = gather(world, (f"/proc/{os.getpid()}/fd/{file.fileno()}", name, places))
        # Ranks of a node need not be neighbours, so each tries all.
        found = next((read for one in offers if (read := _read(*one)) is not None), value)
        gather(world, None)  # all have opened it
    return found


def _write(value: object, file: BinaryIO) -> list[slice] | None:
    """Where in the file a pickle and the arrays are; None if the value cannot be shared."""
    content, arrays, places = io.BytesIO(), list[memoryview](), list[slice]()
    pickler = pickle.Pickler(content, 5, buffer_callback=lambda array: arrays.append(array.raw()))
    pickler.dispatch_table = copyreg.dispatch_table | {Tensor: _reduced}
    with suppress(Exception):  # too little memory, or one of many errors of pickling
        pickler.dump(value)
        for part in (content.getbuffer(), *arrays):
            start = file.seek(-file.tell() % 64, os.SEEK_CUR)
            places.append(slice(start, start + file.write(part)))
        file.flush()
        return places
    return None


def _read(path: str, name: str, places: list[slice] | None) -> Any:
    """What is in a file; None on another node, and where it cannot be opened or unpickled."""
    with suppress(Exception):
        if places and name in str(Path(path).readlink()):
            with Path(path).open("rb") as file:
                whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            content, *arrays = (whole[place] for place in places)
            return pickle.loads(content, buffers=arrays)
    return None


def _reduced(value: Tensor) -> tuple[Any, ...]:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *_ = line.split()
        start, end = (int(address, 16) for address in span.split("-"))
        in_file = start <= value.data_ptr() < end and inode != "0"
        if in_file or not value.is_contiguous():
            raise ValueError("a file, which all ranks can map, or strides that NumPy forgets")
    return torch.from_numpy, (value.numpy(),)
