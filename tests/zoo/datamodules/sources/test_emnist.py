import numpy as np
import pytest
import torch

from flfast.zoo.datamodules.sources.emnist import emnist

SPLITS = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}
STATS = {"mean": [0.1751], "std": [0.3332]}

pytestmark = pytest.mark.usefixtures("no_network")


@pytest.fixture
def write(tmp_path, write_idx, rng):
    """Files of one split with every class in both parts; returns upright images."""

    def files(split):
        first = 1 if split == "letters" else 0
        labels = np.arange(SPLITS[split]) + first
        images = rng.integers(256, size=(2, len(labels), 28, 28)).astype(np.uint8)
        for part, upright in zip(("train", "test"), images, strict=True):
            stem = tmp_path / "EMNIST" / "raw" / f"emnist-{split}-{part}"
            write_idx(stem.with_name(f"{stem.name}-images-idx3-ubyte"), upright.swapaxes(1, 2))
            write_idx(stem.with_name(f"{stem.name}-labels-idx1-ubyte"), labels)
        return torch.from_numpy(images.reshape(-1, 1, 28, 28))

    return files


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("download", [False, True])
def test_images_stand_upright_and_labels_start_at_0(split, download, write, tmp_path):
    upright = write(split)
    examples = emnist(split=split, root=str(tmp_path), download=download, **STATS)
    assert torch.equal(examples.inputs, upright)
    assert examples.inputs.is_contiguous()
    assert examples.num_classes == SPLITS[split]
    assert examples.targets.tolist() == [*range(SPLITS[split])] * 2
    assert examples.is_test.tolist() == [False] * SPLITS[split] + [True] * SPLITS[split]


def test_missing_files_are_said_with_the_split(tmp_path):
    with pytest.raises(ValueError, match="no readable EMNIST/raw/emnist-letters"):
        emnist(split="letters", root=str(tmp_path), download=False, **STATS)
