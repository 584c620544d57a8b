from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from flfast.datamodules.sources import image_files
from flfast.datamodules.sources.decoded_images import load_images
from flfast.datamodules.sources.image_files import ImageFiles
from flfast.datamodules.sources.image_folder import ImageFolder, list_class_folders

SETTINGS = {
    "image_size": None,
    "in_memory": True,
    "cache": None,
    "channels": 3,
    "test_fraction": 0.25,
    "mean": [0.5],
    "std": [0.5],
    "random_crop": 0,
    "random_flip": False,
    "seed": 0,
}


@pytest.fixture
def save(tmp_path, rng):
    """Write random images of (width, height) pixels below tmp_path; returns the last [H, W, 3]."""

    def images(folder, num=4, size=(6, 5), suffix="png"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for index in range(num):
            pixels = rng.integers(256, size=(size[1], size[0], 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / folder / f"{index}.{suffix}")
        return pixels

    return images


@pytest.fixture
def load(tmp_path):
    return lambda **changes: ImageFolder(root=str(tmp_path), **SETTINGS | changes).load()


def test_train_and_test_folders_are_kept_apart(save, load):
    for folder, num in {"train/b": 2, "train/a": 3, "test/b": 1, "test/a": 2}.items():
        last = save(folder, num)
    examples = load()
    assert examples.class_names == ("a", "b")
    assert examples.targets.tolist() == [0, 0, 0, 1, 1, 0, 0, 1]
    assert examples.is_test.tolist() == [False] * 5 + [True] * 3
    assert examples.num_classes == 2
    assert examples.inputs.shape == (8, 3, 5, 6)
    assert examples.inputs.dtype == torch.uint8
    assert torch.equal(examples.inputs[6], torch.from_numpy(last).permute(2, 0, 1))


def test_a_test_folder_may_lack_classes_and_keeps_the_numbers_of_train(save, load):
    for folder in ("train/a", "train/b", "test/b"):
        save(folder, 1)
    assert load().targets.tolist() == [0, 1, 1]


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_without_a_test_folder_a_stratified_part_is_held_out(prefix, save, load):
    save(f"{prefix}cat", 8)
    save(f"{prefix}dog", 4)
    examples = load()
    assert np.bincount(examples.targets[examples.is_test]).tolist() == [2, 1]
    assert load(test_fraction=0.0).is_test is None


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("image_size", [None, 4])
def test_decoding_on_access_gives_what_decoding_at_once_gives(channels, image_size, save, load):
    save("a", 3, suffix="jpg")
    save("b", 2)
    kept = load(channels=channels, image_size=image_size)
    lazy = load(channels=channels, image_size=image_size, in_memory=False)
    assert isinstance(lazy.inputs, torch.utils.data.Dataset)
    assert len(lazy.inputs) == 5
    assert torch.equal(torch.stack([lazy.inputs[i] for i in range(5)]), kept.inputs)
    assert lazy.input_shape == kept.input_shape == tuple(kept.inputs.shape[1:])
    assert kept.input_shape[0] == channels


@pytest.mark.parametrize("image_size", [None, 4])
def test_a_cache_gives_the_same_images_without_decoding_again(image_size, save, tmp_path):
    save("data/a", 3, suffix="jpg")
    save("data/b", 2)
    settings = {"root": str(tmp_path / "data"), "image_size": image_size}
    plain = ImageFolder(**SETTINGS | settings).load()
    settings["cache"] = str(tmp_path / "cache")
    first = ImageFolder(**SETTINGS | settings).load()
    (file,) = (tmp_path / "cache").iterdir()  # and no unfinished one
    written = file.stat().st_mtime_ns
    again = ImageFolder(**SETTINGS | settings).load()
    assert torch.equal(first.inputs, plain.inputs)
    assert torch.equal(again.inputs, plain.inputs)
    assert file.stat().st_mtime_ns == written
    save("data/b", 3)  # other files are decoded anew
    assert len(ImageFolder(**SETTINGS | settings).load().inputs) == 6
    assert len([*(tmp_path / "cache").iterdir()]) == 2


def test_a_cache_that_cannot_be_used_is_an_error(save, load, tmp_path):
    save("a")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ValueError, match=r"data\.cache=.*file cannot be filled"):
        load(cache=str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"data\.in_memory=true, or data\.cache=null"):
        load(cache=str(tmp_path / "cache"), in_memory=False)
    (tmp_path / "a" / "2.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"2\.png is not a readable image"):
        load(cache=str(tmp_path / "cache"), image_size=4)
    assert [*(tmp_path / "cache").iterdir()] == []


def test_an_image_size_scales_and_cuts_to_the_centre(tmp_path, load):
    pixels = np.zeros((8, 24, 3), dtype=np.uint8)
    pixels[:, 8:16] = 200
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / "0.png")
    inputs = load(image_size=8, test_fraction=0.0).inputs
    assert inputs.shape == (1, 3, 8, 8)
    assert (inputs == 200).all()


@pytest.mark.parametrize("in_memory", [True, False])
def test_images_of_two_sizes_are_an_error_that_names_both(in_memory, save, load, tmp_path):
    save("a")
    save("b", size=(7, 5))
    with pytest.raises(ValueError, match="differ in size") as caught:
        load(in_memory=in_memory)
    for part in (tmp_path / "a/0.png", "6 x 5", tmp_path / "b/0.png", "7 x 5", "data.image_size"):
        assert str(part) in str(caught.value)


@pytest.mark.parametrize("image_size", [None, 4])
@pytest.mark.parametrize("content", ["text", "cut"])
def test_an_unreadable_file_is_named(content, image_size, save, load, tmp_path):
    save("a")
    path = tmp_path / "a" / "2.png"
    path.write_bytes(b"no image" if content == "text" else path.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"2\.png is not a readable image") as caught:
        load(image_size=image_size)
    assert caught.value.__suppress_context__


def test_a_file_that_breaks_later_is_named_on_access(save, load, tmp_path):
    save("a")
    examples = load(in_memory=False)
    (tmp_path / "a" / "3.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"3\.png is not a readable image"):
        examples.inputs[3]


def test_augmentation_and_statistics_reach_the_transform(save, load):
    save("a")
    transform = load(random_crop=2, random_flip=True).transform
    assert (transform.random_crop, transform.random_flip, transform.mean) == (2, True, (0.5,))


def test_folders_without_classes_or_images_are_errors(load, tmp_path):
    with pytest.raises(ValueError, match=r"data\.root must hold images in train/CLASS/"):
        load()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no valid file for the class empty"):
        load()
    with pytest.raises(ValueError, match=r"data\.root"):
        ImageFolder(root=str(tmp_path / "nowhere"), **SETTINGS).load()


def test_test_without_train_and_unknown_test_classes_are_errors(save, load):
    save("test/c")
    with pytest.raises(ValueError, match=r"test/ but no train/"):
        load()
    save("train/a")
    with pytest.raises(ValueError, match=r"classes \['c'\] that train/ lacks"):
        load()


MODES = {
    "I;16": (np.uint16, [0, 257, 32896, 65535], [0, 1, 128, 255]),
    "1": (bool, [0, 1, 1, 0], [0, 255, 255, 0]),
    "L": (np.uint8, [0, 1, 128, 255], [0, 1, 128, 255]),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("mode", "suffix"), [("I;16", ".png"), ("I;16", ".tif"), ("1", ".png"), ("L", ".png")]
)
def test_pixels_of_every_type_keep_their_order(tmp_path, mode, suffix, channels):
    kind, stored, expected = MODES[mode]
    path = str(tmp_path / f"a{suffix}")
    Image.fromarray(np.array([stored], kind)).save(path)
    found = ImageFiles([path], channels=channels, image_size=None)[0]
    assert found.tolist() == [[expected]] * channels


@pytest.mark.parametrize("mode", ["LA", "P", "RGBA", "CMYK"])
def test_colours_are_those_of_the_file(tmp_path, mode):
    grey = np.array([[0, 51, 153, 255]], np.uint8)  # of Pillow's palette
    path = str(tmp_path / "a.tif")
    Image.fromarray(grey).convert("RGB").convert(mode).save(path)
    found = ImageFiles([path], channels=1, image_size=None)[0]
    assert np.abs(found.numpy()[0].astype(int) - grey).max() <= 1


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_pixels_of_unknown_range_are_refused(tmp_path, kind):
    path = str(tmp_path / "a.tif")
    Image.fromarray(np.array([[0, 1], [2, 3]], kind)).save(path)
    mode = "F" if kind is np.float32 else "I"
    with pytest.raises(ValueError, match=rf"a\.tif is not .*Pillow's mode {mode}; allowed: 8"):
        ImageFiles([path], channels=1, image_size=None)[0]


def test_links_in_loops_are_read_once(tmp_path, save_images):
    for name in ("cat", "dog"):
        save_images(name, ["a.png", "b.png"])
        (tmp_path / name / "self").symlink_to(tmp_path / name)
        (tmp_path / name / "up").symlink_to(tmp_path)
        (tmp_path / name / "out").mkdir()
        (tmp_path / name / "out" / "back").symlink_to("..")
    save_images("dog/more", ["c.png"])
    (tmp_path / "cat" / "again").symlink_to(tmp_path / "cat" / "out")
    samples, classes = list_class_folders(tmp_path)
    assert classes == ["cat", "dog"]
    assert [(Path(path).name, label) for path, label in samples] == [
        *(("a.png", 0), ("b.png", 0), ("a.png", 1), ("b.png", 1), ("c.png", 1))
    ]
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "self").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "cat").mkdir(parents=True)
    save_images("root/cat/in", ["d.png"])
    (tmp_path / "root" / "cat" / "out").symlink_to(tmp_path / "outside")
    assert len(list_class_folders(tmp_path / "root")[0]) == 1
    (tmp_path / "outside" / "root").symlink_to(tmp_path / "root")
    save_images("root/dog", ["e.png"])
    (tmp_path / "root" / "cat" / "above").symlink_to(tmp_path)
    found = {Path(path): label for path, label in list_class_folders(tmp_path / "root")[0]}
    assert found[tmp_path / "root" / "dog" / "e.png"] == 1, "not of cat, whose link leads here"


@pytest.mark.parametrize(("linking", "owning"), [("cat", "dog"), ("dog", "cat")])
def test_a_real_folder_belongs_to_its_own_class(tmp_path, save_images, linking, owning):
    save_images(f"{owning}/big", ["a.png", "b.png"])
    save_images(linking, ["c.png"])
    (tmp_path / linking / "more").symlink_to(tmp_path / owning / "big")
    samples, classes = list_class_folders(tmp_path)
    assert sorted(classes[label] for _, label in samples) == sorted([owning, owning, linking])
    (tmp_path / "owl").symlink_to(tmp_path / owning)
    with pytest.raises(FileNotFoundError, match="Found no valid file for the class owl"):
        list_class_folders(tmp_path)


def test_links_to_other_folders_are_followed(tmp_path, save_images):
    save_images("elsewhere/part", ["a.png"])
    (tmp_path / "root" / "cat").mkdir(parents=True)
    (tmp_path / "root" / "cat" / "part").symlink_to(tmp_path / "elsewhere" / "part")
    assert len(list_class_folders(tmp_path / "root")[0]) == 1


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("cached", [True, False])
def test_images_that_do_not_fit_are_refused_before_one_is_decoded(
    tmp_path, save_images, in_memory, cached, monkeypatch
):
    save_images("cat", ["a.png"])
    monkeypatch.setattr(image_files, "image_tensor", None)
    needs_cache = cached and not in_memory  # a cache is of decoded images
    refused = "data.in_memory=true, or" if needs_cache else "data.image_size=1000000"
    files = ImageFiles([str(tmp_path / "cat" / "a.png")], channels=3, image_size=1_000_000)
    with pytest.raises(ValueError, match=refused):
        load_images(files, in_memory=in_memory, cache=str(tmp_path / "cache") if cached else None)
