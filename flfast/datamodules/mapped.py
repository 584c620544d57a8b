"""Arrays in files, mapped into memory: only the rows that are asked for are read."""

import mmap
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flfast.state.messages import one_line
from flfast.state.regular_file import require_file


def map_array(path: Path) -> np.memmap:
    """A .npy file as an array that is read on access, and cannot be written.

    Raises:
        ValueError: if the file is not a .npy file of numbers in C order, or is cut off.
    """
    try:
        require_file(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # noqa: BLE001 - the parser of headers raises errors of many types
        raise ValueError(f"{path} is not a readable .npy file: {one_line(error)}") from None
    if not isinstance(array, np.memmap):
        raise ValueError(f"{path} is not a .npy file of numbers")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{path} is in Fortran order, in which a row lies all over the file: save it with "
            "numpy.ascontiguousarray"
        )
    if isinstance(array.base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        # Otherwise each row may read megabytes behind it: 25 to 40 times slower, as measured.
        array.base.madvise(mmap.MADV_RANDOM)
    return array


def shared_tensor(array: np.ndarray) -> Tensor:
    """A tensor over the memory of an array, which may be a read-only file: never write to it.

    A mapping that may be written, as torch wants it, would count as memory in use. Linux refuses
    it for files that are larger than the memory.

    Raises:
        TypeError: if torch has no such type.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)
