import pytest
import torch

from flfast.zoo.datamodules.sources.tiny_imagenet import TinyImagenet

FOLDER = "tiny-imagenet-200"


@pytest.fixture
def load(tmp_path, in_memory):
    return lambda **changes: TinyImagenet(
        root=str(tmp_path), **{"image_size": None} | in_memory | changes
    ).load()


@pytest.fixture
def written(tmp_path, save_images):
    """Three classes, listed in another order than sorted; returns the images of val/."""
    wnids = ["n03", "n01", "n02"]
    for number, wnid in enumerate(wnids, start=1):
        names = [f"{wnid}_{i}.JPEG" for i in range(number)]
        save_images(f"{FOLDER}/train/{wnid}/images", names)
    images = save_images(f"{FOLDER}/val/images", ["val_0.png", "val_1.png"])
    lines = "val_1.png\tn03\t0\t32\t44\t62\nval_0.png\tn01\t52\t55\t57\t59\n"
    (tmp_path / FOLDER / "val" / "val_annotations.txt").write_text(lines)
    return images


def test_classes_follow_the_ids_and_val_is_the_test_set(written, load):
    examples = load()
    assert examples.targets.tolist() == [0, 0, 1, 1, 1, 2, 2, 0]
    assert examples.is_test.tolist() == [False] * 6 + [True] * 2
    assert (examples.num_classes, examples.input_shape) == (3, (3, 5, 6))
    expected = torch.from_numpy(written[[1, 0]]).permute(0, 3, 1, 2)
    assert torch.equal(examples.inputs[6:], expected)
    assert examples.owner is None


@pytest.mark.usefixtures("written")
def test_images_are_scaled_and_read_later_as_asked(load):
    examples = load(image_size=4, in_memory=False)
    assert examples.input_shape == (3, 4, 4)
    assert len(examples.inputs) == 8


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("train/n03/images/n03_0.JPEG", None, "no readable tiny-imagenet-200/.* the class n03"),
        ("val/val_annotations.txt", None, "no readable tiny-imagenet-200/"),
        (
            "val/val_annotations.txt",
            "a.png\tn7\n",
            r"annotations\.txt, line 1: .* of train",
        ),
        ("val/val_annotations.txt", "b.png\tn01\n", r"val/images/b\.png is not a readable"),
    ],
)
def test_missing_and_broken_files_are_named(path, content, message, load, tmp_path):
    file = tmp_path / FOLDER / path
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(ValueError, match=message):
        load()
