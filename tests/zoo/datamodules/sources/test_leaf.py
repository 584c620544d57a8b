import json

import numpy as np
import pytest
import torch

from flfast.zoo.datamodules.sources.leaf import Leaf


@pytest.fixture
def write(tmp_path):
    """Write {user: (x, y)} as a file of LEAF."""

    def file(part, users):
        data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
        counts = [len(x) for x, _ in users.values()]
        content = {"users": list(users), "num_samples": counts, "user_data": data}
        (tmp_path / part).mkdir(exist_ok=True)
        (tmp_path / part / f"all_data_0_{part}.json").write_text(json.dumps(content))

    return file


@pytest.fixture
def load(tmp_path, in_memory):
    settings = {"root": str(tmp_path), "images": None, "image_size": 4, "dataset": "femnist"}
    return lambda **changes: Leaf(**settings | in_memory | changes).load()


def femnist(images):
    """As LEAF's data_to_json.py: bytes divided by 255."""
    return (images.reshape(len(images), -1) / 255).tolist()


def test_femnist_gives_the_bytes_back_and_writers_are_clients(write, load, rng):
    images = rng.integers(256, size=(6, 1, 28, 28)).astype(np.uint8)
    write("train", {"f1": (femnist(images[:2]), [61, 0]), "f0": (femnist(images[2:3]), [9])})
    write("test", {"f0": (femnist(images[3:4]), [5]), "f1": (femnist(images[4:]), [7, 8])})
    examples = load()
    assert torch.equal(examples.inputs, torch.from_numpy(images))
    assert examples.targets.tolist() == [61, 0, 9, 5, 7, 8]
    assert examples.owner.tolist() == [1, 1, 0, 0, 1, 1]
    assert examples.client_names == ("f0", "f1")
    assert examples.is_test.tolist() == [False] * 3 + [True] * 3
    assert (examples.num_classes, examples.input_shape) == (62, (1, 28, 28))


def test_other_greys_stay_floats_and_users_of_test_are_no_clients(write, load, rng):
    grey = rng.random((1, 784))
    levels = femnist(np.full((1, 784), 51))
    write("train", {"a": (grey.tolist(), [1])})
    write("test", {"b": (levels, [2])})
    examples = load()
    assert examples.inputs.dtype == torch.float32
    assert torch.allclose(examples.inputs[0].flatten(), torch.tensor(grey[0]).float())
    assert torch.allclose(examples.inputs[1], torch.tensor(0.2))
    assert examples.owner.tolist() == [0, -1]


@pytest.mark.parametrize("folder", ["raw/img_align_celeba", "elsewhere"])
def test_celeba_reads_the_faces_that_it_names(folder, write, load, save_images, tmp_path):
    pixels = save_images(folder, ["1.png", "2.png", "3.png"], size=(4, 4))
    write("train", {"7": (["2.png"], [1]), "12": (["3.png"], [0])})
    write("test", {"7": (["1.png"], [0])})
    images = None if folder.startswith("raw") else str(tmp_path / folder)
    examples = load(dataset="celeba", images=images)
    assert torch.equal(examples.inputs, torch.from_numpy(pixels[[1, 2, 0]]).permute(0, 3, 1, 2))
    assert examples.targets.tolist() == [1, 0, 0]
    assert examples.owner.tolist() == [0, 1, 0]  # names that are numbers are sorted as such
    assert examples.num_classes == 2


@pytest.mark.parametrize(
    ("dataset", "x", "y", "message"),
    [
        ("femnist", [[0.5] * 783], [1], r"user 'a' .*784 numbers in \[0, 1\]"),
        ("femnist", [[2.0] * 784], [1], r"user 'a' .*784 numbers in \[0, 1\]"),
        ("femnist", ["1.jpg"], [1], "user 'a' has no examples of data.dataset=femnist"),
        ("femnist", [[0.5] * 784], ["e"], "user 'a' .*y must be integers"),
        ("femnist", [[0.5] * 784], [62], r"labels must lie in \[0, 62\), got 62"),
        ("celeba", [[0.5] * 784], [1], "user 'a' .*x must be file names"),
        ("celeba", ["../1.jpg"], [1], "user 'a' .*x must be file names"),
        ("celeba", ["1.jpg"], [1], r"there is no .*raw/img_align_celeba/1\.jpg"),
    ],
)
def test_files_of_another_dataset_are_refused(dataset, x, y, message, write, load):
    write("train", {"a": (x, y)})
    with pytest.raises(ValueError, match=message):
        load(dataset=dataset)


def test_a_folder_without_users_is_an_error(write, load):
    with pytest.raises(ValueError, match=r"data\.root=.* has no train/\*\.json"):
        load()
    write("train", {"a": ([], [])})
    with pytest.raises(ValueError, match=r"no user has an example"):
        load()
