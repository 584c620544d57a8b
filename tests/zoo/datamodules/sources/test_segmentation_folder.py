"""Files of images and masks, volumes, and every mistake in them."""

import numpy as np
import pytest
import torch
from PIL import Image

from flfast.tasks.task_type import IGNORED
from flfast.zoo.datamodules.sources.segmentation_folder import SegmentationFolder

SETTINGS = {
    "values": None,
    "ignore": None,
    "image_size": None,
    "channels": 1,
    "test_fraction": 0.25,
    "mean": [0.5],
    "std": [0.5],
    "dice_weight": 0.5,
    "seed": 0,
}


@pytest.fixture
def save(tmp_path, rng):
    """Write an image of random bytes, and a mask; returns both. Masks are [H, W] or [S, H, W]."""

    def files(name, mask, *, image=None, ending=".png"):
        mask = np.asarray(mask)
        if image is None:
            image = rng.integers(256, size=mask.shape).astype(np.uint8)
        for part, array in (("images", image), ("masks", mask)):
            path = tmp_path / part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if ending == ".npy":
                np.save(path.with_suffix(ending), array)
            else:
                Image.fromarray(np.asarray(array, dtype=np.uint8)).save(path.with_suffix(ending))
        return image, mask

    return files


@pytest.fixture
def load(tmp_path):
    return lambda **changes: SegmentationFolder(root=str(tmp_path), **SETTINGS | changes).load()


@pytest.fixture
def checkerboard():
    return np.indices((4, 6)).sum(axis=0) % 3


def test_folders_are_clients_and_masks_stay_with_their_images(save, load, checkerboard):
    made = {}
    for client in ("north", "south"):
        for number in range(4):
            name = f"{client}/{number}"
            made[name] = save(name, np.roll(checkerboard, number))
    found = load()
    assert found.client_names == ("north", "south")
    assert found.owner.tolist() == [0] * 4 + [1] * 4
    assert np.bincount(found.owner, weights=found.is_test).tolist() == [1, 1]
    assert (found.num_classes, found.task, found.dice_weight) == (3, "segmentation", 0.5)
    for index, (image, mask) in enumerate(made.values()):
        assert torch.equal(found.inputs[index, 0], torch.from_numpy(image))
        assert torch.equal(found.targets[index].long(), torch.from_numpy(mask))


def test_files_without_folders_have_no_clients_but_labels_for_partitions(save, load):
    for number in range(4):
        save(f"{number}", np.full((4, 4), number % 3) * np.eye(4, dtype=int))
    found = load()
    assert found.owner is None
    assert found.classes.tolist() == [0, 1, 2, 0]


def test_slices_of_a_volume_are_images_and_are_held_out_together(save, load, rng):
    volumes = []
    for name in "abcd":
        mask = rng.integers(2, size=(3, 4, 4))
        image = rng.normal(size=(3, 4, 4)).astype(np.float32)
        volumes.append(save(f"site/{name}", mask, image=image, ending=".npy"))
    found = load()
    assert found.inputs.shape == (12, 1, 4, 4)
    assert sorted(map(sum, found.is_test.reshape(4, 3).tolist())) == [0, 0, 0, 3]
    image, mask = volumes[1]
    assert torch.equal(found.targets[3:6].long(), torch.from_numpy(mask))
    expected = 255 * (image.astype(float) - image.min()) / np.ptp(image.astype(float))
    assert np.abs(found.inputs[3:6, 0].numpy() - expected).max() <= 0.5 + 1e-6


def test_values_name_classes_and_ignored_pixels(save, load):
    save("a", [[0, 255], [7, 255]])
    save("b", [[0, 0], [255, 0]])
    found = load(values=[0, 255], ignore=7, test_fraction=0.0)
    assert found.targets.tolist() == [[[0, 1], [IGNORED, 1]], [[0, 0], [1, 0]]]
    swapped = load(values=[255, 0], ignore=7, test_fraction=0.0)
    assert swapped.targets.tolist()[1] == [[1, 1], [0, 1]]


def test_image_size_scales_both_and_invents_no_value(save, load):
    save("a", np.kron([[0, 4], [1, 0]], np.ones((4, 4), dtype=int)))
    found = load(image_size=4, values=[0, 1, 4], channels=3, mean=[0.5], test_fraction=0.0)
    assert found.inputs.shape == (1, 3, 4, 4)
    assert found.targets[0].tolist() == np.kron([[0, 2], [1, 0]], np.ones((2, 2))).tolist()


def test_masks_may_be_of_a_palette_or_one_bit_and_endings_may_differ(tmp_path, load):
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
    for name in "ab":
        Image.new("RGB", (4, 2), (10, 20, 30)).save(tmp_path / "images" / f"{name}.jpg")
    palette = Image.fromarray(np.array([[0, 1, 1, 0]] * 2, dtype=np.uint8), mode="P")
    palette.putpalette([0, 0, 0, 200, 10, 10])
    palette.save(tmp_path / "masks" / "a.png")
    Image.fromarray(np.array([[True, False] * 2] * 2)).save(tmp_path / "masks" / "b.png")
    found = load(channels=3, test_fraction=0.0)
    assert found.targets[:, 0].tolist() == [[0, 1, 1, 0], [1, 0, 1, 0]]


def half(tmp_path):
    (tmp_path / "masks" / "b.png").unlink()


def lonely(tmp_path):
    (tmp_path / "images" / "b.png").unlink()


def no_folder(tmp_path):
    (tmp_path / "masks").rename(tmp_path / "labels")


def other_size(tmp_path):
    Image.new("L", (5, 2)).save(tmp_path / "masks" / "b.png")


def other_sizes(tmp_path):
    for part in ("images", "masks"):
        Image.new("L", (5, 2)).save(tmp_path / part / "b.png")


def in_colour(tmp_path):
    Image.new("RGB", (4, 2)).save(tmp_path / "masks" / "b.png")


def broken(tmp_path):
    (tmp_path / "masks" / "b.png").write_bytes(b"no image")


def twice(tmp_path):
    Image.new("L", (4, 2)).save(tmp_path / "images" / "b.jpg")


def mixed(tmp_path):
    for part in ("images", "masks"):
        (tmp_path / part / "site").mkdir()
        (tmp_path / part / "b.png").rename(tmp_path / part / "site" / "b.png")


def flat_array(tmp_path):
    (tmp_path / "images" / "b.png").unlink()
    np.save(tmp_path / "images" / "b.npy", np.zeros((4, 2)))


def not_finite(tmp_path):
    (tmp_path / "images" / "b.png").unlink()
    np.save(tmp_path / "images" / "b.npy", np.full((1, 2, 4), np.nan))


def of_floats(tmp_path):
    (tmp_path / "masks" / "b.png").unlink()
    np.save(tmp_path / "masks" / "b.npy", np.zeros((1, 2, 4)))


@pytest.mark.parametrize(
    ("damage", "changes", "message"),
    [
        (half, {}, r"1 files have no mask, such as .*images/b\.png; allowed: a file of the same"),
        (lonely, {}, r"1 files have no image, such as .*masks/b\.png"),
        (no_folder, {}, r"data\.root must hold images/ and masks/ .*masks has none that ends in"),
        (other_size, {}, r"masks/b\.png is of shape \[2, 5\], 1 of them, and .*of shape \[2, 4\]"),
        (other_sizes, {}, r"images differ in size: .* set data\.image_size"),
        (in_colour, {}, r"masks/b\.png: its pixels are of Pillow's mode RGB; allowed for masks"),
        (broken, {}, r"masks/b\.png is not a readable image"),
        (twice, {}, r"b\.jpg and .*b\.png have one name"),
        (mixed, {}, r"images/ has files and folders of clients"),
        (flat_array, {}, r"b\.npy is float64 \[4, 2\]; allowed: numbers \[slices, H, W\]"),
        (not_finite, {}, r"b\.npy has NaN or infinity"),
        (of_floats, {}, r"masks/b\.npy is float64; allowed: integers"),
        (None, {"values": [0, 1]}, r"masks/b\.png has the value 2 in row 1, column 3; allowed by"),
        (None, {"values": [0, 0, 1]}, r"data\.values=\[0, 0, 1\].*at least two different values"),
        (None, {"values": [0, 2], "ignore": 2}, r"data\.values=\[0, 2\], data\.ignore=2"),
        (None, {"ignore": 1}, r"data\.values=null: masks have the values \[0, 2\]; allowed: 0, 1"),
    ],
)
def test_mistakes_are_named(save, load, tmp_path, damage, changes, message):
    save("a", [[0, 1, 1, 0], [0, 0, 0, 0]])
    save("b", [[0, 1, 1, 0], [0, 0, 0, 2]])
    if damage is not None:
        damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        load(**changes)
