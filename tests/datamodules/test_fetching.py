"""Batches that are read by workers."""

import ctypes
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.fetching import Loading, make_fetch
from flfast.datamodules.transforms import BatchTransform

# Of Linux: sched.h and sys/mount.h.
CLONE_NEWNS, CLONE_NEWUSER, MS_REC, MS_PRIVATE = 0x20000, 0x10000000, 0x4000, 0x40000


def with_little_shared_memory():
    """Print the error of workers for each of two ways in which /dev/shm can be full."""
    libc = ctypes.CDLL(None)
    user = os.getuid()
    private = libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0)) == 0
    if private and user:
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    if not private or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
        sys.stdout.write("not allowed here\n")
        return
    examples = Examples(
        inputs=torch.zeros(400, 3000),
        targets=torch.zeros(400).long(),
        num_classes=2,
        input_shape=(3000,),
        transform=BatchTransform(),
    )
    for limit in (b"nr_inodes=1", b"size=64k"):
        assert not libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, limit)
        try:
            list(make_fetch(examples, Loading(9, num_workers=1))([np.arange(400)]))
        except OSError as error:
            sys.stdout.write(f"{error}\n")


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small /dev/shm")
def test_full_shared_memory_is_named_as_what_it_is(start):
    run = start(with_little_shared_memory)
    code, errors = run.end()
    said = (run.folder / "stdout").read_text().splitlines()
    if said == ["not allowed here"]:
        pytest.skip("no namespace for mounts")
    assert code == 0, errors
    assert len(said) == 2
    for line in said:
        assert "no shared memory is left for the batches of loader.num_workers" in line
        assert line.endswith("'/dev/shm'")
