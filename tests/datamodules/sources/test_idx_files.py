import struct

import numpy as np
import pytest

from flfast.datamodules.sources.mnist import mnist

IMAGES = "train-images-idx3-ubyte"


@pytest.fixture
def load(tmp_path, write_idx, rng):
    """Load MNIST with one of its files replaced by other bytes."""
    raw = tmp_path / "MNIST" / "raw"
    for part, num in (("train", 12), ("t10k", 5)):
        write_idx(raw / f"{part}-images-idx3-ubyte", rng.integers(256, size=(num, 28, 28)))
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(num) % 10)

    def load(name, content):
        (raw / name).write_bytes(content)
        return mnist(name="MNIST", root=str(tmp_path), download=False, mean=[0.1], std=[0.3])

    return load


def idx(array, *, start=None, shape=None):
    header = bytes([0, 0, 8, array.ndim]) if start is None else start
    return header + struct.pack(f">{array.ndim}I", *(shape or array.shape)) + array.tobytes()


PIXELS = np.zeros((12, 28, 28), np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged: it has 0 bytes"),
        (idx(PIXELS)[:7], "is damaged: it has 7 bytes"),
        (idx(PIXELS)[:500], r"is damaged: it has 500 bytes, .* \[12, 28, 28\]; allowed"),
        (idx(PIXELS) + b"x", "is damaged: it has 9425 bytes"),
        (idx(PIXELS, shape=(2**31, 28, 28)), r"is damaged: .*\[2147483648, 28, 28\]"),
        (idx(PIXELS, start=b"PK\x03\x04"), "is damaged: .*50 4b 03 04, .*; allowed: 00 00 08 03"),
        (idx(PIXELS, start=b"\0\0\x0d\3"), "is damaged: .*00 00 0d 03"),
        (idx(PIXELS.reshape(12, -1)), "is damaged: .*00 00 08 02"),
        (idx(PIXELS[:0]), r"is damaged: .*\[0, 28, 28\]"),
    ],
)
def test_a_broken_file_is_named_with_what_is_wrong(load, content, message):
    with pytest.raises(ValueError, match=f"{IMAGES} {message}"):
        load(IMAGES, content)


def test_fewer_images_than_labels_are_refused(load):
    with pytest.raises(ValueError, match=r"MNIST/raw/train-.: 7 images, but 12 labels"):
        load(IMAGES, idx(PIXELS[:7]))


def test_labels_out_of_range_and_images_of_two_shapes_name_the_files(load):
    with pytest.raises(ValueError, match=r"MNIST/raw/.*labels must lie in \[0, 10\), got 0 to 11"):
        load("train-labels-idx1-ubyte", idx(np.arange(12, dtype=np.uint8)))
    load("train-labels-idx1-ubyte", idx(np.zeros(12, np.uint8)))  # one class only
    with pytest.raises(ValueError, match=r"MNIST/raw/.* do not fit together: Sizes"):
        load(IMAGES, idx(PIXELS[:, :20].copy()))
