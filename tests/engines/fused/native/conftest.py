"""Kernels, where they can be compiled."""

import shutil

import pytest
import torch

from flfast.engines.fused.native.compiler import COMPILERS, missing


@pytest.fixture(scope="session")
def kernels():
    """`torch.ops.flfast`."""
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip("no C++ compiler")
    assert missing() is None
    return torch.ops.flfast
