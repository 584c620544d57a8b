"""Image files, decoded all at once into a tensor or each on access."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from flfast.datamodules.bounds import require_memory
from flfast.state.regular_file import reading, require_file

READ_ERRORS = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""Raised by Pillow, or here, if a file cannot be decoded."""

_EIGHT_BIT = {
    *("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV")
}
"""Modes that Pillow's `convert` does not clip."""

_ON_ITS_SIDE = 5
"""EXIF orientations from this one exchange width and height."""

_SIXTEEN_BIT = {"I;16", "I;16L", "I;16B", "I;16N"}


class UnreadableImageError(ValueError):
    """A file that cannot be decoded; files read on access may raise it during training."""


@dataclass(frozen=True)
class ImageFiles(Dataset[Tensor]):
    """Map-style dataset of uint8 images [channels, H, W], decoded on access.

    Attributes:
        paths: one file per example.
        channels: 1 converts to greyscale, 3 to RGB.
        image_size: H = W in pixels: the image is scaled to cover this square and cropped to its
            centre; None keeps the file's size.
    """

    paths: Sequence[str]
    channels: Literal[1, 3]
    image_size: int | None

    def __len__(self) -> int:
        return len(self.paths)

    def num_bytes(self) -> int:
        """Bytes of one decoded image; without `image_size`, of the first."""
        width, height = self._size_of_first()
        return self.channels * width * height

    def about(self) -> str:
        """Number and size of the images, for errors."""
        width, height = self._size_of_first()
        size = "null" if self.image_size is None else self.image_size
        return f"data.image_size={size}: {len(self):,} images of {width:,} x {height:,} pixels"

    def _size_of_first(self) -> tuple[int, int]:
        if self.image_size is None:
            return _size(self.paths[0])
        return self.image_size, self.image_size

    def __getitem__(self, index: int) -> Tensor:
        try:
            with _opened(self.paths[index]) as image:
                return image_tensor(image, channels=self.channels, image_size=self.image_size)
        except READ_ERRORS as error:
            raise UnreadableImageError(
                f"{self.paths[index]} is not a readable image: {error}"
            ) from None


def image_tensor(image: Image.Image, *, channels: int, image_size: int | None) -> Tensor:
    """An image as uint8 [channels, H, W]; for the arguments see `ImageFiles`.

    It is turned as its EXIF orientation says. 16-bit grey values are scaled linearly: 65535
    becomes 255. Transparency is left out.

    Raises:
        ValueError: if its pixels have another type, such as floats, whose range is unknown, or its
            file has several pages.
    """
    pixels = _eight_bit(upright(image)).convert("L" if channels == 1 else "RGB")
    if image_size is not None:
        size = (image_size, image_size)
        pixels = ImageOps.fit(pixels, size, method=Image.Resampling.BILINEAR)
    tensor = torch.from_numpy(np.array(pixels))
    return tensor.unsqueeze(0) if channels == 1 else tensor.permute(2, 0, 1).contiguous()


def upright(image: Image.Image) -> Image.Image:
    """The image, turned as its EXIF orientation says.

    Raises:
        ValueError: if its file has several pages.
    """
    pages = getattr(image, "n_frames", 1)
    # MPO is the JPEG of a camera, whose further pictures are previews of the image.
    if pages > 1 and image.format != "MPO":
        raise ValueError(f"it has {pages} pages; allowed: a file for each image")
    ImageOps.exif_transpose(image, in_place=True)
    return image


def _eight_bit(image: Image.Image) -> Image.Image:
    if image.mode in _EIGHT_BIT:
        return image
    # Pillow reads some 16-bit PNG files as 32-bit integers, which PNG does not have.
    if image.mode in _SIXTEEN_BIT or (image.mode == "I" and image.format == "PNG"):
        values = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((values + 128) // 257).astype(np.uint8))
    raise ValueError(
        f"its pixels are of Pillow's mode {image.mode}; allowed: 8 bits per channel, 16 bits in "
        "grey, or arrays with data=npz"
    )


def decode_all(images: Any) -> Tensor:
    """Decode all images of a map-style dataset, uint8 [N, channels, H, W].

    Raises:
        ValueError: if they do not fit into memory, or their sizes differ.
    """
    first = images[0]
    require_memory(len(images) * first.nbytes, f"data.in_memory=true: {len(images):,} images")
    inputs = torch.empty((len(images), *first.shape), dtype=torch.uint8)
    for index in range(len(images)):
        image = images[index]
        if image.shape != first.shape:
            raise ValueError(
                f"images differ in size: image 0 has {first.shape[1]} x {first.shape[2]} pixels, "
                f"image {index} {image.shape[1]} x {image.shape[2]}; set data.image_size to scale "
                "all to one size"
            )
        inputs[index] = image
    return inputs


def check_one_size(paths: Sequence[str]) -> None:
    """Check, from the files' headers, that all images have equal sizes."""
    first = _size(paths[0])
    for path in paths:
        if (size := _size(path)) != first:
            raise ValueError(
                f"images differ in size: {paths[0]} has {first[0]} x {first[1]} pixels, "
                f"{path} {size[0]} x {size[1]}; set data.image_size to scale all to one size"
            )


def _opened(path: str) -> Image.Image:
    require_file(path)
    return Image.open(path)


def _size(path: str) -> tuple[int, int]:
    with reading(f"{path} is not a readable image", *READ_ERRORS), _opened(path) as image:
        width, height = image.size
        # Pillow turns TIFF itself, and would decode a whole PNG to look for EXIF data.
        if image.format == "TIFF" or (image.format == "PNG" and "exif" not in image.info):
            return width, height
        on_its_side = image.getexif().get(ExifTags.Base.Orientation, 1) >= _ON_ITS_SIDE
        return (height, width) if on_its_side else (width, height)
