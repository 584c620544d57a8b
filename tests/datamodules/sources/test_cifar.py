import pickle

import numpy as np
import pytest
import torch
from torchvision import datasets

from flfast.datamodules.sources.cifar import Cifar, Cifar100

SETTINGS = {"mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2], "random_crop": 4, "random_flip": True}
CLASSES = {"CIFAR10": 10, "CIFAR100": 100}


def as_python_2(content):
    """Pickle as the published batches are: Python 2 wrote NumPy's flags as 0 and 1."""
    text = pickle.dumps(content, protocol=2)
    return text.replace(b"\x89\x88\x87", b"K\x00K\x01\x87", 1)


@pytest.fixture
def write(tmp_path, rng, monkeypatch, md5):
    def files(name):
        dataset = getattr(datasets, name)
        key = "labels" if name == "CIFAR10" else "fine_labels"
        folder = tmp_path / dataset.base_folder
        folder.mkdir()
        images, labels = [], []

        def batch(file):
            pixels = rng.integers(256, size=(3, 3 * 32 * 32)).astype(np.uint8)
            classes = rng.integers(CLASSES[name], size=3).tolist()
            content = {"data": pixels, key: classes}
            if name == "CIFAR100":
                content["coarse_labels"] = [label // 5 for label in classes]
            (folder / file).write_bytes(as_python_2(content))
            images.append(torch.from_numpy(pixels).view(-1, 3, 32, 32))
            labels.extend(classes)
            return [file, md5(folder / file)]

        for part in ("train_list", "test_list"):
            entries = [batch(file) for file, _ in getattr(dataset, part)]
            monkeypatch.setattr(dataset, part, entries)
        meta = folder / dataset.meta["filename"]
        meta.write_bytes(pickle.dumps({dataset.meta["key"]: ["name"] * CLASSES[name]}))
        monkeypatch.setattr(dataset, "meta", {**dataset.meta, "md5": md5(meta)})
        return torch.cat(images), labels

    return files


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("download", [False, True])
def test_all_batches_arrive_in_order_as_channels_first(name, download, write, tmp_path):
    images, labels = write(name)
    examples = Cifar(name=name, root=str(tmp_path), download=download, **SETTINGS).load()
    assert torch.equal(examples.inputs, images)
    assert examples.inputs.is_contiguous()
    assert examples.targets.dtype == torch.int64
    assert examples.targets.tolist() == labels
    assert examples.is_test.tolist() == [False] * (len(labels) - 3) + [True] * 3
    assert examples.num_classes == CLASSES[name]
    assert examples.input_shape == (3, 32, 32)
    assert (examples.transform.random_crop, examples.transform.random_flip) == (4, True)


def test_cifar100_has_fine_or_coarse_labels(write, tmp_path):
    images, labels = write("CIFAR100")
    for kind, num, expected in (
        ("fine", 100, labels),
        ("coarse", 20, [label // 5 for label in labels]),
    ):
        examples = Cifar100(root=str(tmp_path), labels=kind, download=False, **SETTINGS).load()
        assert torch.equal(examples.inputs, images)
        assert (examples.num_classes, examples.targets.tolist()) == (num, expected)
        assert examples.targets.dtype == torch.int64
        assert examples.is_test.sum() == 3


@pytest.mark.parametrize("name", CLASSES)
def test_missing_files_are_said_whether_or_not_a_download_was_tried(
    name, tmp_path, unreachable, monkeypatch, capsys
):
    dataset = getattr(datasets, name)
    monkeypatch.setattr(dataset, "url", unreachable + dataset.filename)
    for download in (False, True):
        with pytest.raises(ValueError, match=f"no readable {dataset.base_folder}") as caught:
            Cifar(name=name, root=str(tmp_path), download=download, **SETTINGS).load()
        assert ("nowhere" in str(caught.value)) == download
    assert capsys.readouterr().out == ""


def test_a_damaged_batch_is_not_read(write, tmp_path):
    write("CIFAR10")
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"\(data_batch_2: .*corrupted"):
        Cifar(name="CIFAR10", root=str(tmp_path), download=False, **SETTINGS).load()


def test_a_mean_for_the_wrong_number_of_channels_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"data\.mean"):
        Cifar(
            name="CIFAR10", root=str(tmp_path), download=False, **SETTINGS | {"mean": [0, 0]}
        ).load()
