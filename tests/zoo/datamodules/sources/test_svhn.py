import numpy as np
import pytest
import torch
from scipy.io import savemat
from torchvision.datasets import SVHN

from flfast.zoo.datamodules.sources.svhn import Svhn

SETTINGS = {"mean": [0.4, 0.4, 0.4], "std": [0.2], "random_crop": 0, "random_flip": False}

pytestmark = pytest.mark.usefixtures("no_network")


@pytest.fixture
def write(tmp_path, rng, monkeypatch, md5):
    """Files with the label 10 for the digit 0; returns images [N, 3, 32, 32] and digits."""
    images, digits, checked = [], [], {}
    for part, num in (("train", 11), ("test", 4)):
        pixels = rng.integers(256, size=(32, 32, 3, num)).astype(np.uint8)
        labels = np.arange(num) % 10 + 1
        path = tmp_path / f"{part}_32x32.mat"
        savemat(path, {"X": pixels, "y": labels.astype(np.uint8)[:, None]})
        checked[part] = [SVHN.split_list[part][0], path.name, md5(path)]
        images.append(torch.from_numpy(pixels).permute(3, 2, 0, 1))
        digits.extend((labels % 10).tolist())
    monkeypatch.setattr(SVHN, "split_list", checked)
    return torch.cat(images), digits


@pytest.mark.parametrize("download", [False, True])
def test_images_are_channels_first_and_ten_means_0(write, download, tmp_path, capsys):
    images, digits = write
    examples = Svhn(root=str(tmp_path), download=download, **SETTINGS).load()
    assert torch.equal(examples.inputs, images)
    assert examples.inputs.is_contiguous()
    assert examples.inputs.dtype == torch.uint8
    assert examples.targets.tolist() == digits
    assert examples.is_test.tolist() == [False] * 11 + [True] * 4
    assert examples.input_shape == (3, 32, 32)
    assert capsys.readouterr().out == ""


def test_missing_files_are_said(tmp_path):
    with pytest.raises(ValueError, match=r"no readable train_32x32\.mat and test_32x32\.mat"):
        Svhn(root=str(tmp_path), download=False, **SETTINGS).load()


@pytest.mark.usefixtures("write")
@pytest.mark.parametrize("part", ["train", "test"])
def test_a_cut_file_is_named(part, tmp_path):
    path = tmp_path / f"{part}_32x32.mat"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=rf"{part}_32x32\.mat: .*corrupted"):
        Svhn(root=str(tmp_path), download=False, **SETTINGS).load()
