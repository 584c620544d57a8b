"""Your own images and masks: files of equal names in two folders, volumes as slices."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.examples import Examples
from flfast.datamodules.mapped import map_array
from flfast.datamodules.sources.held_out import held_out_test
from flfast.datamodules.sources.hidden_files import is_hidden, say_left_out
from flfast.datamodules.sources.image_files import READ_ERRORS, image_tensor, upright
from flfast.datamodules.sources.source import DataSource
from flfast.datamodules.transforms import image_transform
from flfast.state.options import BelowOne, Count, NonNegative, NonNegativeInt, Positive
from flfast.state.regular_file import reading, require_file
from flfast.tasks.task_type import IGNORED

_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".npy"}
_MASK_MODES = {"1", "L", "P", "I", "I;16"}
_MOST_NAMED = 5
_BYTES = 256
_Pair = tuple[Path, Path]


@dataclass(frozen=True, kw_only=True)
class SegmentationFolder(DataSource):
    """Images below `root/images/`, and masks of the same names, but for endings, in `root/masks/`.

    Folders below `images/` are clients. A `.npy` file is a volume [S, H, W] whose slices are the
    images; if its numbers are no bytes, they are scaled from its lowest and highest one. The test
    set, which the seed determines, has whole files: slices of a volume stay together.
    """

    root: str
    values: list[NonNegativeInt] | None
    ignore: NonNegativeInt | None
    image_size: Count | None
    channels: Literal[1, 3]
    test_fraction: BelowOne
    mean: list[float]
    std: list[Positive]
    dice_weight: NonNegative
    seed: int

    def load(self) -> Examples:
        """All images and masks, by client and name.

        Raises:
            ValueError: if a mask is missing, a file cannot be read, sizes differ, or a mask has
                another value than those of the classes.
        """
        files, owner, clients = _list_files(Path(self.root).expanduser())
        images, masks, whose = self._read(files)
        targets, num_classes = self._as_classes(masks, files, whose)
        groups = np.zeros(len(files), dtype=np.int64) if owner is None else owner
        is_test = held_out_test(groups, test_fraction=self.test_fraction, seed=self.seed)
        return Examples(
            inputs=images,
            targets=torch.from_numpy(targets),
            num_classes=num_classes,
            transform=image_transform(mean=self.mean, std=self.std, channels=self.channels),
            is_test=is_test[whose],
            owner=None if owner is None else owner[whose],
            task="segmentation",
            client_names=clients,
            dice_weight=self.dice_weight,
        )

    def _read(self, files: list[_Pair]) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
        """Images uint8 [N, channels, H, W], values of masks [N, H, W], and the file of each."""
        images, masks, lengths = list[torch.Tensor](), list[np.ndarray](), list[int]()
        for image, mask in files:
            slices = [*_slices(image, mask, self.image_size)]
            lengths.append(len(slices))
            images += [
                image_tensor(picture, channels=self.channels, image_size=None)
                for picture, _ in slices
            ]
            masks += [values for _, values in slices]
            if images[-1].shape != images[0].shape:
                raise ValueError(
                    f"images differ in size: the first one is {list(images[0].shape[1:])}, "
                    f"{image} {list(images[-1].shape[1:])}; set data.image_size to scale all to "
                    "one size"
                )
            if len(lengths) == 1:
                num_bytes = 2 * len(files) * len(images) * (images[0].nbytes + masks[0].nbytes)
                what = f"data.root={self.root}: {len(files):,} files like {image}"
                require_memory(num_bytes, what)
        return torch.stack(images), np.stack(masks), np.repeat(np.arange(len(files)), lengths)

    def _as_classes(
        self, masks: np.ndarray, files: list[_Pair], whose: np.ndarray
    ) -> tuple[np.ndarray, int]:
        """Masks [N, H, W] of classes, as small numbers, and the number of classes.

        `whose` is the file of each mask [N].
        """
        values, ignore = self.values, self.ignore
        there = sorted({*np.unique(masks).tolist()} - {ignore})
        known = [*range(len(there))] if values is None else [*values]
        if values is None and there != known:
            raise ValueError(
                f"data.values=null: masks have the values {there[:_MOST_NAMED]}; allowed: 0, 1, "
                "..., or a list of the value of each class in data.values, the background first"
            )
        if len(known) < 2 or len({*known}) < len(known) or ignore in known:
            raise ValueError(
                f"data.values={values}, data.ignore={ignore}: masks have {len(known)} classes; "
                "allowed: at least two different values, the background first, none of them "
                "ignored"
            )
        # Masks are large: bytes where these suffice.
        few = ignore is None and len(known) <= _BYTES
        result = np.full(masks.shape, 0 if few else IGNORED, np.uint8 if few else np.int16)
        outside = ~np.isin(masks, [*known, known[0] if ignore is None else ignore])
        if outside.any():
            place = example, row, column = tuple(np.argwhere(outside)[0].tolist())
            raise ValueError(
                f"{files[whose[example]][1]} has the value {masks[place]} in row {row}, "
                f"column {column}; allowed by data.values: {', '.join(map(str, known))}"
            )
        for number, value in enumerate(known):
            result[masks == value] = number
        return result, len(known)


def _list_files(root: Path) -> tuple[list[_Pair], np.ndarray | None, tuple[str, ...]]:
    """Image and mask of each file, the number of its client [F] or None, and clients' names."""
    images, masks = (_by_name(root / part) for part in ("images", "masks"))
    for have, lack, part in ((images, masks, "mask"), (masks, images, "image")):
        missing = sorted(have.keys() - lack.keys())
        if missing:
            raise ValueError(
                f"data.root={root}: {len(missing)} files have no {part}, such as "
                f"{have[missing[0]]}; allowed: a file of the same name, but for its ending, in "
                f"{root / f'{part}s'}"
            )
    files = [(images[name], masks[name]) for name in images]
    folders = [Path(name).parts[:-1] for name in images]
    if not any(folders):
        return files, None, ()
    if not all(folders):
        raise ValueError(
            f"data.root={root}: images/ has files and folders of clients; allowed: one of them"
        )
    clients, owner = np.unique([folder[0] for folder in folders], return_inverse=True)
    return files, owner, tuple(clients.tolist())


def _by_name(folder: Path) -> dict[str, Path]:
    """Files by their paths below the folder, without endings, in the order of these."""
    found: dict[str, Path] = {}
    paths = [path for path in folder.rglob("*") if path.suffix.lower() in _ENDINGS]
    hidden = [path for path in paths if any(map(is_hidden, path.relative_to(folder).parts))]
    say_left_out(hidden, _ENDINGS)
    for path in sorted({*paths} - {*hidden}):
        name = str(path.relative_to(folder).with_suffix(""))
        if name in found:
            raise ValueError(f"{found[name]} and {path} have one name; allowed: one of them")
        found[name] = path
    if not found:
        raise ValueError(
            f"data.root must hold images/ and masks/ with files of equal names, and {folder} has "
            f"none that ends in {', '.join(sorted(_ENDINGS))}"
        )
    return found


def _slices(
    image: Path, mask: Path, image_size: int | None
) -> Iterator[tuple[Image.Image, np.ndarray]]:
    """Pictures of a file and their masks, int32 [H, W], scaled to `image_size` if it is one."""
    is_volume = image.suffix.lower() == ".npy"
    pictures = [Image.fromarray(x) for x in _as_bytes(image)] if is_volume else [_opened(image)]
    masks = _mask(mask)
    if (len(pictures), *pictures[0].size[::-1]) != masks.shape:
        raise ValueError(
            f"{mask} is of shape {list(masks.shape[1:])}, {len(masks)} of them, and {image} of "
            f"shape {list(pictures[0].size[::-1])}, {len(pictures)}; allowed: equal ones"
        )
    for picture, classes in zip(pictures, masks, strict=True):
        if image_size is None:
            yield picture, classes
            continue
        size = (image_size, image_size)
        whole = ImageOps.fit(Image.fromarray(classes), size, method=Image.Resampling.NEAREST)
        yield ImageOps.fit(picture, size, method=Image.Resampling.BILINEAR), np.asarray(whole)


def _opened(path: Path) -> Image.Image:
    with reading(f"{path} is not a readable image", *READ_ERRORS):
        require_file(path)
        with Image.open(path) as image:
            return upright(image)


def _volume(path: Path) -> np.ndarray:
    array = map_array(path)
    if array.ndim != 3 or array.dtype.kind not in "biuf" or not array.size:
        raise ValueError(
            f"{path} is {array.dtype} {list(array.shape)}; allowed: numbers [slices, H, W]"
        )
    return array


def _as_bytes(path: Path) -> np.ndarray:
    """A volume, scaled from its lowest and highest number if these are no bytes."""
    volume = _volume(path)
    if volume.dtype == np.uint8:
        return volume
    numbers = volume.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{path} has NaN or infinity; allowed: finite numbers")
    numbers -= numbers.min()
    scaled: np.ndarray = (255 * numbers / (numbers.max() or 1)).round().astype(np.uint8)
    return scaled


def _mask(path: Path) -> np.ndarray:
    """Values of masks, int32 [S, H, W]."""
    if path.suffix.lower() == ".npy":
        array: np.ndarray = _volume(path)
        if array.dtype.kind == "f":
            raise ValueError(f"{path} is {array.dtype}; allowed: integers")
        if array.dtype.kind != "b" and not -(2**31) <= array.min() <= array.max() < 2**31:
            raise ValueError(
                f"{path} has the values {array.min()} to {array.max()}; allowed for masks: "
                "integers of 32 bits"
            )
        return array.astype(np.int32)
    image = _opened(path)
    if image.mode not in _MASK_MODES:
        raise ValueError(
            f"{path}: its pixels are of Pillow's mode {image.mode}; allowed for masks: one number "
            "a pixel, grey or of a palette"
        )
    return np.asarray(image).astype(np.int32)[None]
