import gzip
import socket

import pytest
import torch
from torchvision import datasets

from flfast.datamodules.sources import held_out
from flfast.datamodules.sources.mnist import mnist

NAMES = ["MNIST", "FashionMNIST", "KMNIST"]
STATS = {"mean": [0.1307], "std": [0.3081]}


@pytest.fixture
def write(tmp_path, write_idx, rng):
    def files(name, suffix=""):
        parts = {}
        for part, num in (("train", 12), ("t10k", 5)):
            images = rng.integers(256, size=(num, 28, 28))
            labels = rng.integers(10, size=num)
            write_idx(tmp_path / name / "raw" / f"{part}-images-idx3-ubyte{suffix}", images)
            write_idx(tmp_path / name / "raw" / f"{part}-labels-idx1-ubyte{suffix}", labels)
            parts[part] = torch.tensor(images), torch.tensor(labels)
        return parts

    return files


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("download", [False, True])
def test_the_training_set_comes_first_and_the_test_set_is_marked(name, download, write, tmp_path):
    parts = write(name)
    examples = mnist(name=name, root=str(tmp_path), download=download, **STATS)
    images, labels = (torch.cat(pair) for pair in zip(*parts.values(), strict=True))
    assert examples.inputs.dtype == torch.uint8
    assert torch.equal(examples.inputs, images.to(torch.uint8).unsqueeze(1))
    assert torch.equal(examples.targets, labels)
    assert examples.is_test.tolist() == [False] * 12 + [True] * 5
    assert examples.owner is None
    assert examples.input_shape == (1, 28, 28)
    assert examples.num_classes == 10
    assert examples.transform.mean == (0.1307,)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("download", [False, True])
def test_a_tilde_is_the_home_folder(download, write, tmp_path, monkeypatch):
    write("MNIST")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(mnist(name="MNIST", root="~", download=download, **STATS).targets) == 17


@pytest.mark.usefixtures("no_network")
def test_compressed_files_are_unpacked_without_a_network(write, tmp_path, monkeypatch, md5):
    parts = write("MNIST", suffix=".gz")
    raw = tmp_path / "MNIST" / "raw"
    resources = [(name, md5(raw / name)) for name, _ in datasets.MNIST.resources]
    monkeypatch.setattr(datasets.MNIST, "resources", resources)
    examples = mnist(name="MNIST", root=str(tmp_path), download=True, **STATS)
    assert torch.equal(examples.targets[12:], parts["t10k"][1])


@pytest.mark.usefixtures("no_network")
def test_compressed_files_are_read_where_they_cannot_be_unpacked(write, tmp_path):
    parts = write("MNIST", suffix=".gz")
    before = sorted(tmp_path.rglob("*"))
    examples = mnist(name="MNIST", root=str(tmp_path), download=False, **STATS)
    images, labels = (torch.cat(pair) for pair in zip(*parts.values(), strict=True))
    assert torch.equal(examples.inputs, images.to(torch.uint8).unsqueeze(1))
    assert torch.equal(examples.targets, labels)
    assert sorted(tmp_path.rglob("*")) == before
    path = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))
    with pytest.raises(ValueError, match=r"labels-idx1-ubyte.gz is damaged: .*19 bytes.* \[12\]"):
        mnist(name="MNIST", root=str(tmp_path), download=False, **STATS)


@pytest.mark.usefixtures("no_network")
def test_missing_files_are_said_with_the_folder_and_the_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"FLFAST_DATA.*data\.download=true") as caught:
        mnist(name="KMNIST", root=str(tmp_path), download=False, **STATS)
    assert f"data.root={tmp_path} has no readable KMNIST/raw/*-ubyte" in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_download_that_fails_says_why_and_nothing_to_stdout(
    tmp_path, unreachable, monkeypatch, capsys
):
    monkeypatch.setattr(datasets.MNIST, "mirrors", [unreachable])
    with pytest.raises(ValueError, match=r"nowhere/train-images-idx3-ubyte\.gz") as caught:
        mnist(name="MNIST", root=str(tmp_path / "data"), download=True, **STATS)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert capsys.readouterr().out == ""


def test_a_silent_host_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(held_out, "_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        monkeypatch.setattr(datasets.MNIST, "mirrors", [f"http://{host}:{port}/"])
        with pytest.raises(ValueError, match="timed out"):
            mnist(name="MNIST", root=str(tmp_path), download=True, **STATS)
    assert socket.getdefaulttimeout() is None


def test_a_cut_file_is_an_error_and_not_fewer_examples(write, tmp_path):
    write("MNIST")
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="no readable MNIST"):
        mnist(name="MNIST", root=str(tmp_path), download=False, **STATS)
