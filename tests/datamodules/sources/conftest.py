"""Writers of small datasets in the form in which the real ones lie on disk."""

import gzip
import hashlib
import struct
import urllib.request
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def no_network(monkeypatch):
    """Any attempt to fetch something fails at once."""

    def refuse(*_args, **_kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@pytest.fixture
def write_idx():
    """Write uint8 [N] or [N, H, W] as an IDX file, compressed if its name says so."""

    def write(path: Path, array: np.ndarray) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        content = header + array.astype(np.uint8).tobytes()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)

    return write


@pytest.fixture
def md5():
    return lambda path: hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def unreachable(tmp_path):
    """An address at which there is nothing, found out without a network."""
    return (tmp_path / "nowhere").as_uri() + "/"
