"""Loads arrays of numbers from untrusted pickles, without running pickled code.

This file replaces every global that a pickled array refers to, so that NumPy's unpickling of
types does not run either. Any other global is refused.
"""

import io
import pickle
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flfast.datamodules.bounds import check_archive
from flfast.state.pickle_bounds import check_pickle

_NUMERIC = re.compile(r"[iuf]\d{1,2}")


class _Dtype:
    def __init__(self, name: object, *_flags: object) -> None:
        self.name = name if isinstance(name, str) else "?"
        self.byte_order: Any = "="

    def __setstate__(self, state: Sequence[Any]) -> None:
        self.byte_order = state[1]

    def numpy(self) -> np.dtype:
        if not _NUMERIC.fullmatch(self.name):
            raise ValueError(f"holds data of type {self.name}, only numbers are read")
        return np.dtype(self.name).newbyteorder(self.byte_order)


class _Array:
    def __setstate__(self, state: Sequence[Any]) -> None:
        _, self.shape, self.dtype, fortran, self.content = state
        self.order: Literal["C", "F"] = "F" if fortran else "C"
        self.axes: Sequence[int] = ()

    def numpy(self) -> np.ndarray:
        if not isinstance(self.content, bytes | bytearray):
            raise ValueError(f"holds data of type {self.dtype.name}, only numbers are read")
        flat = np.frombuffer(self.content, self.dtype.numpy())
        array = flat.reshape(self.shape, order=self.order)
        return array.transpose(self.axes) if self.axes else array


def _array(content: Any, dtype: _Dtype, shape: Sequence[int], order: str, *axes: Any) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, dtype, order == "F", content))
    array.axes = axes[0] if order == "K" else ()
    return array


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError("encodes bytes in another way than latin1")
    return text.encode("latin1")


_REPLACEMENTS: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Dtype,
    # Only passed to _reconstruct, which ignores it.
    ("numpy", "ndarray"): "ndarray",
    # Protocol 2 encodes bytes as calls of these two, the second for empty bytes.
    ("_codecs", "encode"): _latin1,
    ("__builtin__", "bytes"): lambda: b"",
}
for _core in ("core", "_core"):
    _REPLACEMENTS |= {
        (f"numpy.{_core}.multiarray", "_reconstruct"): lambda *_: _Array(),
        (f"numpy.{_core}.multiarray", "scalar"): lambda dtype, raw: _array(raw, dtype, (), "C"),
        (f"numpy.{_core}.numeric", "_frombuffer"): _array,
    }


_MOST_STEPS = 100_000


class _Unpickler(pickle.Unpickler):
    """Reads arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _REPLACEMENTS:
            raise ValueError(f"refers to {module}.{name}, only arrays of numbers are read")
        return _REPLACEMENTS[module, name]


def load_arrays(path: Path, *, entry: str, names: Sequence[str]) -> list[np.ndarray]:
    """Read-only arrays of numbers from a pickled dict in an npz file.

    `numpy.savez(path, entry={...})` writes such a file; the dict is a 0-d object array.

    Raises:
        ValueError: if the file is damaged, holds anything else, or refers to another global.
    """
    try:
        check_archive(path, {f"{entry}.npy"})
        with zipfile.ZipFile(path) as archive, archive.open(f"{entry}.npy") as stream:
            version = np.lib.format.read_magic(stream)
            if version != (1, 0):
                raise ValueError(f"has an npy header of version {version}, (1, 0) is read")
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            if shape or not dtype.hasobject:
                raise ValueError(f"{entry} is {dtype} {list(shape)}, expected one pickled dict")
            content = io.BytesIO(stream.read())
            check_pickle(content, most_steps=_MOST_STEPS)
            content.seek(0)
            return _select_arrays(_Unpickler(content).load(), names)
    except Exception as error:  # noqa: BLE001 - pickle, zlib and others raise errors of many types
        raise ValueError(f"{path} cannot be read: {str(error) or type(error).__name__}") from None


def _select_arrays(loaded: Any, names: Sequence[str]) -> list[np.ndarray]:
    content = loaded.content[0] if isinstance(loaded, _Array) else loaded
    if not isinstance(content, dict) or not set(names) <= content.keys():
        found = sorted(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"holds {found}, expected a dict with {list(names)}")
    for name in names:
        if not isinstance(content[name], _Array):
            raise ValueError(f"{name} is a {type(content[name]).__name__}, expected an array")
    return [content[name].numpy() for name in names]
