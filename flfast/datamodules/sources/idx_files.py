"""Checks IDX files, the format of MNIST and similar datasets."""

import math
import struct
from pathlib import Path

_HEADER = ">BBBB"
_UINT8 = 8


def check_idx(images: Path, labels: Path) -> None:
    """Check headers and sizes of two uncompressed files; missing files are accepted.

    Args:
        images: path of the images, uint8 [N, H, W].
        labels: path of the labels, uint8 [N].

    Raises:
        ValueError: if a file is damaged; names the file and the problem.
    """
    shapes = [_shape(path, ndim) for path, ndim in ((images, 3), (labels, 1)) if path.is_file()]
    counts = [shape[0] for shape in shapes]
    if len(set(counts)) > 1:
        raise ValueError(f"{images} has {counts[0]} images, but {labels} {counts[1]} labels")


def _shape(path: Path, ndim: int) -> tuple[int, ...]:
    header = struct.calcsize(_HEADER) + 4 * ndim
    with path.open("rb") as stream:
        start = stream.read(header)
    if len(start) < header:
        raise ValueError(
            f"{path} is truncated: it has {len(start)} bytes, its header alone has {header}"
        )
    zero, empty, kind, dims = struct.unpack_from(_HEADER, start)
    if (zero, empty, kind, dims) != (0, 0, _UINT8, ndim):
        raise ValueError(
            f"{path} begins with {start[:4].hex(' ')}, expected 00 00 08 0{ndim}: an IDX file of "
            f"bytes in {ndim} dimensions"
        )
    shape = struct.unpack_from(f">{ndim}I", start, struct.calcsize(_HEADER))
    found, expected = path.stat().st_size, header + math.prod(shape)
    if found != expected:
        raise ValueError(f"{path} has {found} bytes, its shape {list(shape)} needs {expected}")
    if not found - header:
        raise ValueError(f"{path} is empty: its shape is {list(shape)}")
    return shape
