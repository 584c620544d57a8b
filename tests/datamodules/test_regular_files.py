"""Files of data are regular files: nothing waits for a pipe, and nothing reads a device."""

import ast
import inspect
import os
from pathlib import Path

import numpy as np
import pytest

import flfast.datamodules
import flfast.zoo.datamodules
from flfast.datamodules.mapped import map_array
from flfast.datamodules.sources.image_files import ImageFiles
from flfast.datamodules.sources.mnist import read_idx
from flfast.datamodules.sources.table_files import read_table
from flfast.state.regular_file import require_file
from flfast.state.weights import read_state_dict
from flfast.zoo.datamodules.partitions.from_file import from_file
from flfast.zoo.datamodules.sources.camelyon17 import _read_table
from flfast.zoo.datamodules.sources.conversation_files import read_conversations
from flfast.zoo.datamodules.sources.leaf_files import leaf_users
from flfast.zoo.datamodules.sources.numeric_pickle import load_arrays
from flfast.zoo.datamodules.sources.pamap2 import read_number_table
from flfast.zoo.datamodules.sources.pfllib import pfllib
from flfast.zoo.datamodules.sources.text_folder import _read

OPENING = {"open", "read_text", "read_bytes", "load", "loadtxt", "genfromtxt", "memmap", "ZipFile"}
CHECKING = {"require_file", "read_text", "read_file", "open_gzip", "check_archive", "check_csv"}


def called(node):
    """(what it is called on, name) of all calls in a function."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, (ast.Name, ast.Attribute)):
            on = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            yield on, getattr(call.func, "attr", getattr(call.func, "id", ""))


def functions():
    for package in (flfast.datamodules, flfast.zoo.datamodules):
        root = Path(inspect.getfile(package)).parent
        for path in sorted(root.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    yield f"{path.relative_to(root)}: {node.name}", node


ALLOWED = {
    "node_copies.py: _read": "the memory of another rank",
    "node_copies.py: _reduced": "of the kernel",
    "sources/digits.py: _digits": "of scikit-learn",
    "sources/cifar.py: _coarse_labels": "torchvision has compared the checksum of the file",
    "sources/decoded_images.py: _write": "is written",
    "sources/hf_files.py: _load": "of the library",
    "sources/source.py: examples_from": "a record loads itself",
    "sources/npz.py: _format_of": "asks whether it is a file",
}


def test_whatever_opens_a_file_of_data_has_checked_that_it_is_one():
    unchecked = []
    for name, node in functions():
        calls = [*called(node)]
        opens = [f"{on}.{call}" for on, call in calls if call in OPENING and on != "json"]
        opens = [call for call in opens if call != ".read_text" and not call.startswith("archive")]
        if opens and not {call for _, call in calls} & CHECKING:
            unchecked.append(name)
    assert set(unchecked) <= set(ALLOWED), sorted(set(unchecked) - set(ALLOWED))


READERS = {
    "train-images-idx3-ubyte": lambda path: read_idx(path.parent, "train"),
    "inputs.npy": map_array,
    "owner.npz": lambda path: from_file(3, path=str(path), digest=""),
    "0.npz": lambda path: load_arrays(path, entry="data", names=["x"]),
    "metadata.csv": lambda path: _read_table(path, "root"),
    "train.csv": _read,
    "table.csv": lambda path: read_table(str(path)),
    "table.parquet": lambda path: read_table(str(path)),
    "subject101.dat": read_number_table,
    "train/a.json": lambda path: [*leaf_users(str(path.parents[1]))],
    "a.jsonl": lambda path: read_conversations(str(path), None),
    "a.png": lambda path: ImageFiles([str(path)], channels=1, image_size=None)[0],
    "model.pt": lambda path: read_state_dict(str(path), key="init_from"),
    "model.safetensors": lambda path: read_state_dict(str(path), key="init_from"),
    "config.json": lambda path: pfllib(root=str(path.parent)),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_for_a_pipe_or_reads_a_device(name, make, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    make(path)
    with pytest.raises((ValueError, OSError)):
        READERS[name](path)


def test_links_of_the_user_are_followed(tmp_path):
    np.save(tmp_path / "there.npy", np.ones((2, 2)))
    (tmp_path / "here.npy").symlink_to("there.npy")
    require_file(tmp_path / "here.npy")
    assert map_array(tmp_path / "here.npy").shape == (2, 2)
