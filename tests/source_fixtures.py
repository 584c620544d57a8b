"""Writers of small datasets in the form in which the real ones lie on disk."""

import gzip
import hashlib
import struct
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


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


@pytest.fixture
def save_images(tmp_path, rng):
    """Write random images of (width, height) pixels below tmp_path; returns all [num, H, W, 3].

    Names may be given; a suffix without compression losses gives the same pixels back.
    """

    def images(folder, names, size=(6, 5)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(256, size=(len(names), size[1], size[0], 3)).astype(np.uint8)
        for name, image in zip(names, pixels, strict=True):
            Image.fromarray(image).save(tmp_path / folder / name)
        return pixels

    return images


@pytest.fixture
def in_memory():
    """Options that all sources of image files share."""
    return {"in_memory": True, "cache": None, "random_crop": 0, "random_flip": False} | {
        "mean": [0.5],
        "std": [0.5],
    }
