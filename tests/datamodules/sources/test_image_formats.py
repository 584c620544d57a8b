"""Orientation, pages, palettes and hidden files: what an image is, whatever its file says."""

import io
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image

from flfast.datamodules.sources.decoded_images import load_images
from flfast.datamodules.sources.image_files import ImageFiles, image_tensor
from flfast.datamodules.sources.image_folder import list_class_folders
from flfast.zoo.datamodules.sources.domains import Domains
from flfast.zoo.datamodules.sources.segmentation_folder import SegmentationFolder

TURNS = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(x, 2).swapaxes(0, 1),
    8: lambda x: np.rot90(x),
}
"""What each EXIF orientation asks for, of pixels [H, W, ...]."""


def blocks(rng, mode):
    """Pixels [24, 40] or [24, 40, 3] of equal blocks, which JPEG hardly changes."""
    small = rng.choice([0, 255], size=(3, 5, *[3] * (mode == "RGB"))).astype(np.uint8)
    return small.repeat(8, axis=0).repeat(8, axis=1)


def saved(pixels, form, orientation, file):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    given = {"exif": exif} if form != "TIFF" else {"tiffinfo": {0x112: orientation}}
    quality = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95, "subsampling": 0}}
    Image.fromarray(pixels).save(file, form, **given, **quality.get(form, {}))


@given(
    st.sampled_from(["JPEG", "PNG", "TIFF", "WEBP"]),
    st.sampled_from(sorted(TURNS)),
    st.sampled_from(["L", "RGB"]),
    st.integers(0, 99),
)
def test_an_image_is_turned_as_its_file_says(form, orientation, mode, seed):
    pixels = blocks(np.random.default_rng(seed), mode)
    file = io.BytesIO()
    saved(pixels, form, orientation, file)
    with Image.open(file) as image:
        found = image_tensor(image, channels=3, image_size=None).numpy()
    wanted = np.broadcast_to(np.atleast_3d(TURNS[orientation](pixels)), (*found.shape[1:], 3))
    assert np.abs(found.transpose(1, 2, 0).astype(int) - wanted).mean() < 12


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_sizes_in_headers_are_those_of_the_turned_images(form, tmp_path, rng):
    upright = blocks(rng, "RGB")
    paths = []
    for orientation in TURNS:
        paths.append(str(tmp_path / f"{orientation}.{form.lower()}"))
        pixels = upright if orientation < 5 else upright.swapaxes(0, 1)
        saved(np.ascontiguousarray(pixels), form, orientation, paths[-1])
    files = ImageFiles(paths, channels=3, image_size=None)
    lazy = load_images(files, in_memory=False, cache=None)
    kept = load_images(files, in_memory=True, cache=None)
    assert kept.shape == (8, 3, 24, 40)
    assert torch.equal(kept, torch.stack([lazy[index] for index in range(8)]))


@pytest.mark.parametrize("mode", ["P", "PA", "1", "LA", "RGBA", "I;16", "CMYK"])
def test_pixels_of_every_mode_are_turned(mode):
    rng = np.random.default_rng(1)
    if mode == "I;16":
        image = Image.fromarray(blocks(rng, "L").astype(np.uint16) * 257)
    else:
        image = Image.fromarray(blocks(rng, "RGB")).convert(mode.replace("PA", "P"))
        image = image.convert(mode)
    plain = image_tensor(image.copy(), channels=3, image_size=None)
    image.getexif()[ExifTags.Base.Orientation] = 6
    found = image_tensor(image, channels=3, image_size=None)
    assert torch.equal(found, plain.rot90(-1, dims=(1, 2)))


@pytest.mark.parametrize("form", ["TIFF", "PNG", "WEBP"])
def test_a_file_of_several_images_is_refused_by_name(form, tmp_path, rng):
    path = tmp_path / f"stack.{form.lower()}"
    pages = [Image.fromarray(blocks(rng, "L")) for _ in range(3)]
    pages[0].save(path, form, save_all=True, append_images=pages[1:])
    files = ImageFiles([str(path)], channels=1, image_size=None)
    with pytest.raises(ValueError, match=f"{path} is not a readable image: it has 3 pages"):
        load_images(files, in_memory=True, cache=None)


def test_the_previews_of_a_camera_are_no_pages(tmp_path, rng):
    pages = [Image.fromarray(blocks(rng, "RGB")) for _ in range(2)]
    pages[0].save(tmp_path / "camera.jpg", "MPO", save_all=True, append_images=pages[1:])
    files = ImageFiles([str(tmp_path / "camera.jpg")], channels=3, image_size=None)
    found = load_images(files, in_memory=True, cache=None)[0].numpy()
    wanted = np.asarray(pages[0]).transpose(2, 0, 1)
    assert np.abs(found.astype(int) - wanted).mean() < 40


SEGMENTATION = {
    "values": [0, 255],
    "ignore": None,
    "image_size": None,
    "channels": 1,
    "test_fraction": 0.0,
    "mean": [0.5],
    "std": [0.5],
    "dice_weight": 0.5,
    "seed": 0,
}


@pytest.mark.parametrize("orientation", sorted(TURNS))
def test_a_photograph_and_its_mask_agree(orientation, tmp_path, rng):
    mask = blocks(rng, "L")
    mask[0, 0], mask[-1, -1] = 0, 255
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
    saved(mask, "JPEG", orientation, tmp_path / "images" / "a.jpg")
    upright = np.ascontiguousarray(TURNS[orientation](mask))
    Image.fromarray(upright).save(tmp_path / "masks" / "a.png")
    found = SegmentationFolder(root=str(tmp_path), **SEGMENTATION).load()
    same = (found.inputs[0, 0] > 127) == found.targets[0].bool()
    assert same.float().mean() > 0.95
    saved(mask, "PNG", orientation, tmp_path / "masks" / "a.png")
    turned = SegmentationFolder(root=str(tmp_path), **SEGMENTATION).load()
    assert torch.equal(turned.targets, found.targets)


@given(st.sampled_from([np.int64, np.uint32, np.uint64]), st.integers(31, 62))
@settings(max_examples=10)
def test_values_of_masks_do_not_wrap(kind, bit):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        value = min(2**bit, np.iinfo(kind).max)
        for part in ("images", "masks"):
            (folder / part).mkdir()
            mask = np.zeros((1, 4, 4), kind if part == "masks" else np.uint8)
            mask[0, 1, 1] = value if part == "masks" else 1
            np.save(folder / part / "a.npy", mask)
        with pytest.raises(ValueError, match=f"a.npy has the values 0 to {value}; allowed"):
            SegmentationFolder(root=name, **SEGMENTATION).load()


HIDDEN = [".thumbnails", "__MACOSX", "@eaDir", ".ipynb_checkpoints", "$RECYCLE.BIN"]


@pytest.fixture
def cats(tmp_path, rng):
    """A folder with the classes cat and dog, and all that systems put there."""
    image = Image.fromarray(blocks(rng, "RGB"))
    for name in ("cat", "dog", *HIDDEN, *(f"cat/{hidden}" for hidden in HIDDEN)):
        (tmp_path / "site" / name).mkdir(parents=True)
        image.save(tmp_path / "site" / name / "a.png")
    for name in (".DS_Store", "Thumbs.db", "cat/.DS_Store", "cat/Thumbs.db", "dog/._a.png"):
        (tmp_path / "site" / name).write_bytes(b"\0")
    return tmp_path


def test_what_systems_put_into_a_folder_is_no_class_and_no_image(cats, caplog):
    samples, classes = list_class_folders(cats / "site")
    assert classes == ["cat", "dog"]
    site = cats / "site"
    assert samples == [(str(site / "cat" / "a.png"), 0), (str(site / "dog" / "a.png"), 1)]
    [line] = caplog.messages
    assert line.startswith("11 hidden places with images are left out, such as ")


def test_hidden_folders_without_images_are_left_out_in_silence(tmp_path, rng, caplog):
    for name in ("cat", ".git"):
        (tmp_path / name).mkdir()
    Image.fromarray(blocks(rng, "RGB")).save(tmp_path / "cat" / "a.png")
    (tmp_path / ".git" / "config").touch()
    assert list_class_folders(tmp_path)[1] == ["cat"]
    assert not caplog.messages


def test_hidden_folders_are_no_domains_and_no_clients(cats, rng, caplog):
    (cats / "site").rename(cats / "sketch")
    for name in (".cache", "photo"):
        for kind in ("cat", "dog"):
            (cats / name / kind).mkdir(parents=True)
            Image.fromarray(blocks(rng, "RGB")).save(cats / name / kind / "a.png")
    found = Domains(
        root=str(cats),
        clients_per_domain=1,
        test_domain=None,
        test_fraction=0.0,
        seed=0,
        image_size=None,
        in_memory=True,
        cache=None,
        channels=3,
        mean=[0.5],
        std=[0.5],
        random_crop=0,
        random_flip=False,
    ).load()
    assert found.client_names == ("photo", "sketch")
    assert any(".cache" in line for line in caplog.messages)


def test_hidden_masks_and_clients_are_left_out(tmp_path, rng, caplog):
    caplog.set_level(logging.WARNING)
    for part in ("images", "masks"):
        for client in ("north", ".thumbnails", "__MACOSX"):
            (tmp_path / part / client).mkdir(parents=True)
            Image.fromarray(blocks(rng, "L")).save(tmp_path / part / client / "a.png")
        (tmp_path / part / "north" / "._a.png").touch()
    found = SegmentationFolder(root=str(tmp_path), **SEGMENTATION).load()
    assert found.client_names == ("north",) and len(found.targets) == 1
    assert [line[:22] for line in caplog.messages] == ["3 hidden places with i"] * 2
