"""What unpacks or asks for more than its bound is refused before memory is taken."""

import gzip
import io
import os
import struct
import zipfile
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from flfast.datamodules import bounds
from flfast.datamodules.sources import hf_files
from flfast.datamodules.sources.image_files import (
    ImageFiles,
    check_one_size,
)
from flfast.datamodules.sources.mnist import read_idx
from flfast.datamodules.sources.npz import read_arrays
from flfast.datamodules.sources.table_files import read_table
from flfast.datamodules.sources.text_tokens import Text, language_examples, make_tokenizer
from flfast.zoo.datamodules.partitions import from_file
from flfast.zoo.datamodules.sources import camelyon17, pamap2, tiny_imagenet, word_vocabulary
from flfast.zoo.datamodules.sources.leaf_files import leaf_users
from flfast.zoo.datamodules.sources.numeric_pickle import load_arrays

SIZE = 5 * 10**7


@pytest.fixture
def small_bound(monkeypatch):
    monkeypatch.setattr(bounds, "free_memory", lambda: 10**7)


@pytest.fixture
def unread(monkeypatch):
    """Unpacking anything fails."""

    def refuse(*_args, **_kwargs):
        raise AssertionError("the file was unpacked")

    monkeypatch.setattr(bounds.gzip, "open", refuse)


@pytest.mark.usefixtures("small_bound", "unread")
@pytest.mark.parametrize("content", [b"a,b\n" + bytes(SIZE), bytes(SIZE)])
def test_a_bomb_in_a_table_is_refused_before_it_is_unpacked(tmp_path, content):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=r"data.path=.*unpacked needs 50 MB"):
        read_table(str(tmp_path / "a.csv.gz"))


@pytest.mark.usefixtures("small_bound", "unread")
def test_a_bomb_in_images_is_refused_before_it_is_unpacked(tmp_path):
    header = struct.pack(">BBBB3I", 0, 0, 8, 3, 1, 1, 1)
    content = gzip.compress(header + bytes(SIZE))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(ValueError, match="unpacked needs 50 MB; allowed: up to 10 MB"):
        read_idx(tmp_path, "train")


def test_an_honest_file_is_read_as_it_is(tmp_path):
    content = bytes(range(256)) * 100
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    with bounds.open_gzip(tmp_path / "a.gz") as stream:
        assert stream.read() == content


@pytest.mark.usefixtures("small_bound")
def test_archives_that_do_not_fit_are_refused(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", inputs=np.zeros(SIZE, np.uint8))
    with pytest.raises(ValueError, match=r"data.root=.* needs 50 MB; .*unzip it"):
        read_arrays(tmp_path / "a.npz", {"inputs": "inputs"})
    np.savez_compressed(tmp_path / "b.npz", data=np.array({"x": np.zeros(SIZE, np.uint8)}))
    with pytest.raises(ValueError, match="needs 50 MB"):
        load_arrays(tmp_path / "b.npz", entry="data", names=("x",))


def test_a_header_that_claims_more_than_is_there_is_refused(tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("inputs.npy", stream.getvalue() + bytes(80))
    with pytest.raises(ValueError, match=r"a.npz is not a readable .npz file"):
        read_arrays(tmp_path / "a.npz", {"inputs": "inputs"})


@pytest.mark.parametrize(
    "claim",
    [b"\x8e" + struct.pack("<Q", 2**40), b"Nr" + struct.pack("<I", 2**31) + b"."],
    ids=["bytes", "memo"],
)
def test_a_pickle_that_claims_more_than_is_there_takes_no_memory(tmp_path, claim):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "|O", "fortran_order": False, "shape": ()}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("data.npy", stream.getvalue() + b"\x80\x04" + claim)
    with pytest.raises(ValueError, match=r"a.npz cannot be read: (expected|is no pickle)"):
        load_arrays(tmp_path / "a.npz", entry="data", names=("x",))


@pytest.mark.usefixtures("small_bound")
def test_a_parquet_file_of_one_value_is_bounded_by_its_rows(tmp_path):
    column = pa.DictionaryArray.from_arrays(np.zeros(SIZE // 10, np.int8), ["a"])
    parquet.write_table(pa.table({"a": column}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 10**5
    with pytest.raises(ValueError, match=r"5,000,000 rows of 1 columns, needs 40 MB"):
        read_table(str(tmp_path / "a.parquet"))


@pytest.fixture
def load_hf(tmp_path, monkeypatch):
    """Reads a file as `data=hf` does, with 10 MB free on the disk, and no memory."""
    usage = bounds.shutil.disk_usage(tmp_path)._replace(free=10**7)
    monkeypatch.setattr(bounds.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(bounds, "free_memory", lambda: 0)

    def load(path):
        cache = str(tmp_path / "cache")
        return hf_files.load_splits(
            str(path), name=None, names=[], download=False, cache_dir=cache
        )

    return load


def _zipped(content):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", content)
    return stream.getvalue()


packed = cache(lambda pack: pack(bytes(SIZE)))


@pytest.mark.parametrize("name", ["a.jsonl", "folder/a.jsonl", "folder/a.jsonl.packed"])
@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (gzip.compress, "needs 50 MB; allowed: up to 10 MB"),
        (_zipped, "needs 50 MB; allowed: up to 10 MB"),
    ],
)
def test_a_bomb_is_refused_before_the_library_unpacks_it(
    tmp_path, monkeypatch, load_hf, name, pack, message
):
    monkeypatch.setattr(bounds.gzip, "open", None)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(packed(pack))
    with pytest.raises(ValueError, match=message):
        load_hf(path.parent if "/" in name else path)
    assert not (tmp_path / "cache").exists()


def test_the_disk_bounds_what_the_library_unpacks_and_not_the_memory(tmp_path, load_hf):
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 5))
    for _ in ("unpacked", "from the cache"):
        assert len(load_hf(path)["train"]) == 5
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * (SIZE // 9)))
    with pytest.raises(ValueError, match="needs 50 MB; allowed: up to 10 MB"):
        load_hf(path)


def test_windows_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"2,147,483,647 tokens needs .* GB; allowed"):
        texts = [Text(np.zeros(9, np.int64), 0, is_test=False)] * 1000
        language_examples(texts, length=2**31 - 1, vocabulary=("a",))


def _image(path):
    return ImageFiles([str(path)], channels=3, image_size=None)[0]


READERS = {
    "a.npz": lambda path: read_arrays(path, {"inputs": "auto"}),
    "a.csv": lambda path: read_table(str(path)),
    "a.csv.gz": lambda path: read_table(str(path)),
    "a.parquet": lambda path: read_table(str(path)),
    "a.png": _image,
    "b.png": lambda path: check_one_size([str(path)]),
    "train/a.json": lambda path: list(leaf_users(str(path.parent.parent))),
    "a.dat": lambda path: pamap2._read_subject(path),
    "owners.npz": lambda path: from_file._read(str(path)),
    "words.json": lambda path: word_vocabulary._read(str(path)),
    "tokenizer.json": lambda path: make_tokenizer(str(path), texts=[], vocabulary_size=3),
    "metadata.csv": lambda path: camelyon17._read_table(path, str(path.parent)),
    "val/val_annotations.txt": lambda path: tiny_imagenet._test_files(path.parent.parent, []),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_refused_before_it_is_opened(tmp_path, name, make):
    """A pipe would block for ever, and a device fills the memory."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    with pytest.raises((ValueError, OSError), match="is no file"):
        READERS[name](path)
