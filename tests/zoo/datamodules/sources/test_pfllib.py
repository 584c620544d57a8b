import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import others_slow

from flfast.zoo.datamodules.sources.pfllib import pfllib

REAL = Path(__file__).parents[5] / "shared" / "data" / "pfllib-mnist"


def write(root, part, client_id, **content):
    (root / part).mkdir(parents=True, exist_ok=True)
    np.savez_compressed(root / part / f"{client_id}.npz", data=content)


def client(num, shape=(1, 4, 4), dtype=np.float32):
    rng = np.random.default_rng(num)
    return {"x": rng.normal(size=(num, *shape)).astype(dtype), "y": np.arange(num) % 3}


@pytest.fixture
def root(tmp_path):
    """Three clients with 3, 4, 5 training examples and 1, 2, 3 test examples."""
    for client_id in range(3):
        write(tmp_path, "train", client_id, **client(3 + client_id))
        write(tmp_path, "test", client_id, **client(1 + client_id))
    return tmp_path


SIZES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=12)


@given(SIZES)
@settings(max_examples=10, deadline=None)
def test_every_example_arrives_once_with_its_owner_and_part(sizes):
    with tempfile.TemporaryDirectory() as folder:
        for client_id, pair in enumerate(sizes):
            for part, num in zip(("train", "test"), pair, strict=True):
                x = np.full((num, 2), 100 * client_id + (part == "test"), np.float32)
                write(Path(folder), part, client_id, x=x, y=np.arange(num))
        examples = pfllib(root=folder)
    no_test = np.zeros(len(examples.targets), bool)
    is_test = no_test if examples.is_test is None else examples.is_test
    code = 100 * examples.owner + is_test
    assert np.array_equal(examples.inputs[:, 0].numpy(), code)
    for client_id, (num_train, num_test) in enumerate(sizes):
        own = examples.owner == client_id
        assert examples.targets[own & ~is_test].tolist() == [*range(num_train)]
        assert examples.targets[own & is_test].tolist() == [*range(num_test)]


def test_inputs_stay_as_stored_and_are_not_normalised_again(root):
    examples = pfllib(root=str(root))
    assert examples.inputs.dtype == torch.float32
    assert examples.targets.dtype == torch.int64
    assert np.array_equal(examples.inputs[3:7].numpy(), client(4)["x"])
    assert examples.input_shape == (1, 4, 4)
    assert examples.transform.mean is None
    assert examples.num_classes == 3


@pytest.mark.parametrize(
    ("stored", "expected"),
    [(np.float64, torch.float32), (np.uint8, torch.uint8), (np.int32, torch.int64)],
)
def test_numbers_arrive_in_a_type_that_models_read(tmp_path, stored, expected):
    write(tmp_path, "train", 0, **client(3, dtype=stored))
    write(tmp_path, "test", 0, **client(2, dtype=stored))
    assert pfllib(root=str(tmp_path)).inputs.dtype == expected


def test_config_json_may_name_more_classes_than_occur(root):
    (root / "config.json").write_text(json.dumps({"num_classes": 9, "num_clients": 3}))
    assert pfllib(root=str(root)).num_classes == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not readable JSON"),
        ("[1]", "is not a JSON object"),
        ('{"num_classes": 0}', "num_classes=0, expected an integer >= 1"),
        ('{"num_clients": "3"}', "num_clients='3', expected"),
        ('{"num_clients": 4}', r"lacks train/3\.npz"),
        ('{"num_classes": 2}', r"labels must lie in \[0, 2\)"),
    ],
)
def test_a_config_that_is_wrong_or_does_not_fit_is_refused(root, text, message):
    (root / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        pfllib(root=str(root))


@pytest.mark.parametrize("missing", ["train", "test"])
def test_a_file_missing_in_one_part_is_named(root, missing):
    (root / missing / "2.npz").unlink()
    with pytest.raises(ValueError, match=rf"lacks {missing}/2\.npz; each of its 3 clients"):
        pfllib(root=str(root))


def test_missing_and_empty_folders_are_errors(tmp_path):
    with pytest.raises(ValueError, match="has no folder train/"):
        pfllib(root=str(tmp_path))
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match="has no folder test/"):
        pfllib(root=str(tmp_path))
    (tmp_path / "test").mkdir()
    with pytest.raises(ValueError, match=r"lacks train/0\.npz"):
        pfllib(root=str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": np.ones((2, 1, 4, 4)), "labels": np.ones(2)}, r"expected a dict with \['x', 'y'\]"),
        (client(2) | {"y": np.arange(3)}, r"x has shape \[2, 1, 4, 4\], y \[3\]"),
        (client(2) | {"y": np.ones(2)}, r"y is float64 \[2\], expected integer"),
        (client(2) | {"y": np.ones((2, 1), int)}, r"y is int64 \[2, 1\]"),
        (client(2) | {"x": np.ones(2)}, r"x has shape \[2\], y \[2\]"),
        (client(2) | {"x": np.array(["a", "b"])}, "only numbers are read"),
        (client(2, shape=(1, 5, 4)), r"float32 \[1, 5, 4\], but .*0.npz has float32 \[1, 4, 4\]"),
        (client(2, dtype=np.uint8), r"uint8 \[1, 4, 4\], but"),
        (client(2) | {"y": np.array([0, -1])}, "labels must lie in >= 0, got -1 to 0"),
        (client(2) | {"x": np.full((2, 1, 4, 4), np.nan, np.float32)}, "x holds NaN or infinity"),
        (client(2) | {"x": np.full((2, 1, 4, 4), np.inf, np.float32)}, "x holds NaN or infinity"),
    ],
)
def test_what_does_not_fit_is_refused(root, content, message):
    write(root, "test", 1, **content)
    with pytest.raises(ValueError, match=message) as caught:
        pfllib(root=str(root))
    assert "1.npz" in str(caught.value)


@pytest.mark.parametrize(
    "labels",
    others_slow([[0, 0, 0, 0], [0, 1, 2, 0]], [[0, 1, 2, 0]]),
    ids=["one class", "an empty client"],
)
def test_one_class_only_and_a_client_without_tests_are_trained_on(tmp_path, flfast_run, labels):
    for client_id, num in enumerate((4, 4, 4)):
        inputs = np.ones((num, 1, 4, 4), np.float32)
        write(tmp_path / "data", "train", client_id, x=inputs, y=np.array(labels))
        rest = 0 if client_id == 1 else 4
        write(tmp_path / "data", "test", client_id, x=inputs[:rest], y=np.array(labels)[:rest])
    folder = flfast_run(
        *("data=pfllib", f"data.root={tmp_path / 'data'}", "partition=natural"),
        *("model=logistic", "rounds=1", "callbacks=none", "split.val=0.25"),
    )
    assert len((folder / "metrics.csv").read_text().splitlines()) == 3


def test_a_client_without_training_examples_is_an_error_that_names_it(
    tmp_path, flfast_run, capsys
):
    for client_id, num in enumerate((4, 0)):
        write(tmp_path / "data", "train", client_id, **client(num))
        write(tmp_path / "data", "test", client_id, **client(4))
    with pytest.raises(SystemExit):
        flfast_run(
            *("data=pfllib", f"data.root={tmp_path / 'data'}", "partition=natural"),
            *("model=logistic", "rounds=1", "callbacks=none"),
        )
    assert "client" in capsys.readouterr().err


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pickled_code_in_a_dataset_never_runs(root):
    write(root, "train", 2, **client(5), z=Attack(root / "was-run"))
    with pytest.raises(ValueError, match=r"train/2\.npz .*refers to \w+\.mkdir"):
        pfllib(root=str(root))
    assert not (root / "was-run").exists()


@pytest.mark.skipif(not REAL.is_dir(), reason="shared/data/pfllib-mnist is not on this machine")
def test_the_real_mnist_split_of_pfllib_loads_whole():
    examples = pfllib(root=str(REAL))
    assert examples.inputs.shape == (70_000, 1, 28, 28)
    assert examples.inputs.dtype == torch.float32
    assert int(examples.is_test.sum()) == 17_508
    assert np.unique(examples.owner).tolist() == [*range(20)]
    sizes = np.bincount(examples.owner[~examples.is_test])
    assert (sizes.min(), sizes.max()) == (374, 4641)
    assert examples.num_classes == 10
