"""Named arrays of an .npz file, or of a folder of .npy files. Nothing is unpickled."""

from collections.abc import Mapping, Set
from pathlib import Path

import numpy as np

from flfast.datamodules.bounds import MemoryBoundError, check_archive
from flfast.datamodules.mapped import map_array


def read_arrays(path: Path, names: Mapping[str, str | None]) -> dict[str, np.ndarray]:
    """Arrays by option: memory-mapped from a folder, loaded from a file.

    Args:
        path: .npz file, or folder of .npy files.
        names: name of the array for each option. "auto" is the array with the option's name, if
            there is one; None reads no array.

    Raises:
        ValueError: if an array is missing or cannot be read.
    """
    chosen = {key: key if name == "auto" else name for key, name in names.items() if name}
    read = _read_folder if path.is_dir() else _read_file
    arrays = read(path, set(chosen.values()))
    for key, name in chosen.items():
        if name not in arrays and names[key] != "auto":
            raise ValueError(
                f"data.{key}={name}: data.root={path} has no such array; allowed: the name of an "
                "array in the .npz file, or of a file NAME.npy in the folder"
            )
    return {key: arrays[name] for key, name in chosen.items() if name in arrays}


def _read_folder(folder: Path, names: Set[str]) -> dict[str, np.ndarray]:
    paths = {name: folder / f"{name}.npy" for name in names}
    return {name: map_array(path) for name, path in paths.items() if path.is_file()}


def _read_file(path: Path, names: Set[str]) -> dict[str, np.ndarray]:
    try:
        check_archive(path, {f"{name}.npy" for name in names})
        with path.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            return {name: np.ascontiguousarray(archive[name]) for name in names & archive.keys()}
    except MemoryBoundError as error:
        raise ValueError(
            f"data.root={error}; unzip it, and point data.root to the folder of .npy files, "
            "which are memory-mapped"
        ) from None
    except Exception as error:  # noqa: BLE001 - zipfile and zlib raise errors of many types
        raise ValueError(
            f"data.root={path} is not a readable .npz file, nor a folder of .npy files: "
            f"{str(error) or type(error).__name__}"
        ) from None
