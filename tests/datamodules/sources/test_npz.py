"""Arrays from files, and training from a file with a million images."""

import csv
import resource
import sys
import zipfile

import numpy as np
import psutil
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flfast.datamodules.mapped import map_array
from flfast.datamodules.sources.npz import Npz

SETTINGS = {
    "inputs": "inputs",
    "targets": "targets",
    "task": None,
    "owner": "auto",
    "is_test": "auto",
    "num_classes": None,
    "test_fraction": 0.25,
    "mean": None,
    "std": None,
    "random_crop": 0,
    "random_flip": False,
    "seed": 0,
}
ARRAYS = {
    "inputs": np.arange(8 * 3 * 4 * 4, dtype=np.uint8).reshape(8, 3, 4, 4),
    "targets": np.array([0, 1, 2, 0, 1, 2, 0, 1], dtype=np.uint8),
    "owner": np.array(["zoe", "ann", "zoe", "ann", "bob", "bob", "ann", "new"]),
    "is_test": np.array([0, 0, 0, 0, 0, 1, 1, 1], dtype=np.uint8),
}


@pytest.fixture
def write(tmp_path):
    """Write arrays as a folder of .npy files or as an .npz file; returns its path."""

    def files(form, arrays):
        if form == "folder":
            (tmp_path / "arrays").mkdir(exist_ok=True)
            for name, array in arrays.items():
                np.save(tmp_path / "arrays" / f"{name}.npy", array)
            return str(tmp_path / "arrays")
        path = tmp_path / "arrays.npz"
        {"npz": np.savez, "compressed": np.savez_compressed}[form](path, **arrays)
        return str(path)

    return files


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", ["folder", "npz", "compressed"])
def test_every_form_gives_the_arrays_and_numbers_the_clients(form, write):
    examples = Npz(root=write(form, ARRAYS), **SETTINGS).load()
    assert torch.equal(examples.inputs, torch.from_numpy(ARRAYS["inputs"]))
    assert examples.targets.tolist() == ARRAYS["targets"].tolist()
    assert examples.targets.dtype == torch.int64
    assert examples.owner.tolist() == [2, 0, 2, 0, 1, 1, 0, -1]
    assert examples.client_names == ("ann", "bob", "zoe")
    assert examples.is_test.tolist() == [False] * 5 + [True] * 3
    assert (examples.num_classes, examples.input_shape) == (3, (3, 4, 4))


def test_names_are_options_and_what_is_not_there_is_drawn_or_left_out(write):
    root = write("npz", {"x": ARRAYS["inputs"] / 255, "y": ARRAYS["targets"], "who": np.arange(8)})
    examples = Npz(
        root=root, **SETTINGS | {"inputs": "x", "targets": "y", "num_classes": 9}
    ).load()
    assert examples.inputs.dtype == torch.float64
    assert examples.num_classes == 9
    assert examples.owner is None
    assert np.bincount(ARRAYS["targets"][examples.is_test]).tolist() == [1, 1, 1]
    named = Npz(
        root=root,
        **SETTINGS | {"inputs": "x", "targets": "y", "owner": "who", "test_fraction": 0.0},
    ).load()
    assert named.owner.tolist() == [*range(8)]
    assert named.is_test is None


@pytest.mark.parametrize(
    ("asked", "targets", "num_classes", "task"),
    [
        (None, np.arange(16).reshape(8, 2) / 7, 2, "regression"),
        (None, np.arange(8, dtype=np.float16), 1, "regression"),
        (None, np.arange(24).reshape(8, 3) % 2 == 0, 3, "multilabel"),
        (None, np.arange(16).reshape(8, 2), 20, "language"),
        (None, np.arange(8), 8, "classification"),
        ("regression", np.arange(8), 1, "regression"),
        ("survival", np.array([[k, k % 2] for k in range(8)]), 1, "survival"),
        ("multilabel", np.arange(24, dtype=np.uint8).reshape(8, 3) % 2, 3, "multilabel"),
        ("segmentation", np.arange(128, dtype=np.uint8).reshape(8, 16) % 3, 3, "segmentation"),
        ("segmentation", np.arange(128).reshape(8, 16) % 3, 3, "segmentation"),
    ],
)
def test_targets_are_those_of_the_task(asked, targets, num_classes, task, write):
    given = {"num_classes": 20} if task == "language" else {"test_fraction": 0.0}
    if task == "segmentation":
        targets = targets.reshape(8, 4, 4)
    arrays = {"inputs": ARRAYS["inputs"], "targets": targets}
    examples = Npz(root=write("folder", arrays), **SETTINGS | {"task": asked} | given).load()
    assert (examples.task, examples.num_classes) == (task, num_classes)
    shape = (8,) if task == "classification" else (8, targets.size // 8)
    shape = targets.shape if task == "segmentation" else shape
    expected = targets.reshape(shape).astype(np.float32)
    assert np.array_equal(examples.targets.numpy(), expected)
    if task == "language":  # of which no classes are known
        assert examples.is_test.sum() == 2


def test_images_are_normalised_and_augmented_as_asked(write):
    settings = {"mean": [0.1, 0.2, 0.3], "std": [0.5], "random_crop": 2, "random_flip": True}
    transform = Npz(root=write("folder", ARRAYS), **SETTINGS | settings).load().transform
    assert (transform.mean, transform.std) == ((0.1, 0.2, 0.3), (0.5,))
    assert (transform.random_crop, transform.random_flip) == (2, True)


@pytest.mark.parametrize("form", ["folder", "npz"])
@pytest.mark.parametrize(
    ("arrays", "settings", "message"),
    [
        ({}, {"inputs": "x"}, r"data\.inputs=x: data\.root=\S* has no such array"),
        ({}, {"targets": "y"}, r"data\.targets=y: data\.root=\S* has no such array"),
        ({}, {"owner": "who"}, r"data\.owner=who: data\.root=\S* has no such array"),
        (
            {"targets": np.array([*"abcdefgh"])},
            {},
            "data.targets=targets is <U1; allowed for task=classification: integers",
        ),
        ({"targets": np.zeros(7, int)}, {}, r"targets has shape \[7\] for 8 inputs"),
        (
            {"targets": np.zeros((8, 1), int)},
            {"task": "classification"},
            r"targets has shape \[8, 1\] for 8 inputs",
        ),
        ({"targets": np.full(8, -1)}, {}, r"labels must lie in \[0, 1\), got -1"),
        (
            {},
            {"task": "multilabel"},
            r"targets has shape \[8\] for 8 inputs; allowed: \[8, C\]",
        ),
        ({}, {"task": "language"}, r"targets has shape \[8\]"),
        (
            {"targets": np.ones((8, 2), int)},
            {"task": "language"},
            "data.num_classes=null: targets .* are tokens",
        ),
        ({"targets": np.full(8, np.nan)}, {"task": "regression"}, "example 0 is not finite"),
        ({}, {"num_classes": 2}, r"labels must lie in \[0, 2\), got 0 to 2"),
        ({"owner": np.zeros(8)}, {}, "owner is float64; allowed: integers or strings"),
        (
            {"is_test": np.arange(8)},
            {},
            r"data.is_test=auto holds \['2', '3', '4'\]; allowed, in any case: true",
        ),
        ({"inputs": np.zeros(8)}, {}, r"data.inputs=inputs is float64 \[8\]; allowed: numbers"),
        ({"inputs": np.full((8, 2), np.inf)}, {}, "inputs of 8 examples contain NaN"),
        ({"inputs": np.zeros((8, 2), np.uint32)}, {"random_crop": 1}, "need images"),
        ({}, {"mean": [0.5]}, r"data.mean=\[0.5\] data.std=None: give both"),
    ],
)
def test_what_does_not_fit_is_refused(form, write, arrays, settings, message):
    with pytest.raises(ValueError, match=message):
        Npz(root=write(form, ARRAYS | arrays), **SETTINGS | settings).load()


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        import os

        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["folder", "npz"])
def test_pickled_objects_are_refused_and_never_run(form, write, tmp_path):
    objects = np.array([Attack(tmp_path / "was-run")] * 8)
    root = write(form, ARRAYS | {"targets": objects})
    with pytest.raises(ValueError, match="is not a readable"):
        Npz(root=root, **SETTINGS).load()
    assert not (tmp_path / "was-run").exists()


@given(place=st.integers(0, 127), byte=st.integers(0, 255))
@settings(max_examples=80, deadline=None)
@example(place=60, byte=ord("-"))
def test_damaged_headers_are_named(tmp_path_factory, place, byte):
    path = tmp_path_factory.mktemp("headers") / "inputs.npy"
    np.save(path, np.zeros((8, 3), dtype=np.float32))
    content = bytearray(path.read_bytes())
    content[place] = byte
    path.write_bytes(content)
    try:
        map_array(path)
    except ValueError as error:
        assert str(path) in str(error)


def test_broken_and_missing_files_are_named(write, tmp_path):
    with pytest.raises(ValueError, match=r"data\.root=.*nowhere is not a readable \.npz file"):
        Npz(root=str(tmp_path / "nowhere"), **SETTINGS).load()
    root = write("folder", ARRAYS)
    path = tmp_path / "arrays" / "inputs.npy"
    for content in (path.read_bytes()[:200], b"no array", b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"inputs\.npy is not a readable \.npy file"):
            Npz(root=root, **SETTINGS).load()
    np.save(path, np.asfortranarray(np.zeros((8, 5), np.float32)))
    with pytest.raises(ValueError, match=r"inputs\.npy is in Fortran order"):
        Npz(root=root, **SETTINGS).load()
    with pytest.raises(ValueError, match=r"an array of \.npy"):
        Npz(root=str(path), **SETTINGS).load()
    whole = tmp_path / "arrays.npz"
    write("compressed", ARRAYS)
    cut = whole.read_bytes()
    whole.write_bytes(cut[: len(cut) // 2])
    with pytest.raises(ValueError, match=r"arrays\.npz is not a readable \.npz file"):
        Npz(root=str(whole), **SETTINGS).load()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("inputs.npy", b"\x93NUMPY\x01\x00garbage")
    with pytest.raises(ValueError, match=r"arrays\.npz is not a readable \.npz file"):
        Npz(root=str(whole), **SETTINGS).load()


@pytest.fixture(scope="module")
def million(tmp_path_factory):
    """A sparse folder of a million images of 12,288 bytes, the first 2,000 not empty."""
    folder = tmp_path_factory.mktemp("million")
    shape = (1_000_000, 3, 64, 64)
    images = np.lib.format.open_memmap(folder / "inputs.npy", "w+", dtype=np.uint8, shape=shape)
    rng = np.random.default_rng(0)
    images[:2000] = rng.integers(256, size=(2000, 3, 64, 64), dtype=np.uint8)
    del images
    owner = np.arange(10**6) // 1000  # 1,000 clients
    np.save(folder / "owner.npy", owner)
    np.save(folder / "targets.npy", rng.integers(10, size=10**6).astype(np.uint8))
    np.save(folder / "is_test.npy", np.arange(10**6) % 1000 < 1)
    if (folder / "inputs.npy").stat().st_blocks * 512 > 2**30:
        pytest.skip("this file system has no sparse files")
    return folder


def test_opening_a_million_images_reads_none_of_them(million):
    before = psutil.Process().memory_info().rss
    examples = Npz(root=str(million), **SETTINGS).load()
    rows = examples.inputs.index_select(0, torch.tensor([999_999, 0]))
    assert examples.inputs.nbytes > 12e9
    assert psutil.Process().memory_info().rss - before < 2**27
    assert rows[1].float().std() > 70
    assert not rows[0].any()


def peak_memory():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@pytest.mark.slow
def test_both_engines_train_on_a_million_images_in_little_memory(million, flfast_run):
    before = peak_memory()
    losses = []
    for engine in ("fused", "eager"):
        folder = flfast_run(
            *("data=npz", f"data.root={million}", "partition=natural", "model=logistic"),
            *(f"engine={engine}", "rounds=1", "local_epochs=1", "sampler.count=2"),
            *("batch_size=100", "split.val=0.001", "callbacks=none"),
            run_dir=engine,
        )
        with (folder / "metrics.csv").open() as file:
            losses.append([float(row["global/loss"]) for row in csv.DictReader(file)])
    assert peak_memory() - before < 2**30  # of 12 GB
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0][0] != losses[0][1]


def test_channels_at_the_end_are_neither_flipped_nor_cropped(write):
    path = write("npz", ARRAYS | {"inputs": np.zeros((8, 16, 16, 3), np.uint8)})
    with pytest.raises(ValueError, match=r"look like \[H, W, channels\]"):
        Npz(root=path, **SETTINGS | {"random_flip": True}).load()
