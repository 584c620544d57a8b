"""Decodes image files: at the start into memory or into a cache on disk, or each on access."""

import hashlib
from pathlib import Path

import numpy as np
from torch import Tensor

from flfast.datamodules.bounds import free_disk, require_memory
from flfast.datamodules.mapped import map_array, shared_tensor
from flfast.datamodules.sources.image_files import ImageFiles, check_one_size, decode_all
from flfast.state.regular_file import replacing


def load_images(files: ImageFiles, *, in_memory: bool, cache: str | None) -> Tensor | ImageFiles:
    """uint8 images [N, channels, H, W], or the `Dataset` that decodes on access.

    `conf/data/image_folder.yaml` explains the arguments. Images in a cache are memory-mapped. It
    must not be among the folders of the classes. Other files, sizes, dates, channels or image
    sizes are another file in the folder.

    Raises:
        ValueError: if a file is not an image, sizes differ, or the cache cannot be written.
    """
    if cache is not None:
        if not in_memory:
            raise ValueError(
                f"data.cache={cache} keeps what data.in_memory=true decodes; allowed: "
                "data.in_memory=true, or data.cache=null"
            )
        return _cached(files, Path(cache).expanduser())
    if files.image_size is None:
        check_one_size(files.paths)
    num, setting = (len(files), "data.in_memory=true") if in_memory else (1, "one of them")
    require_memory(num * files.num_bytes(), f"{setting}: {files.about()}")
    return decode_all(files) if in_memory else files


def _cached(files: ImageFiles, folder: Path) -> Tensor:
    try:
        path = folder / f"images-{_key(files)}.npy"
        if not path.is_file():
            _write(files, folder, path.name)
    except OSError as error:
        raise ValueError(f"data.cache={folder} cannot be filled: {error}") from None
    return shared_tensor(map_array(path))


def _write(files: ImageFiles, folder: Path, name: str) -> None:
    if files.image_size is None:
        check_one_size(files.paths)
    num_bytes, about = files.num_bytes(), files.about()
    require_memory(num_bytes, about)
    needed = len(files) * num_bytes
    require_memory(needed, f"data.cache={folder}: {about}", free=free_disk(folder))
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(files), *files[0].shape)}
    folder.mkdir(parents=True, exist_ok=True)
    # Not through a mapping: a disk that is full would end the process without a message.
    with replacing(folder) as place, (place / name).open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for index in range(len(files)):
            file.write(files[index].numpy().tobytes())


def _key(files: ImageFiles) -> str:
    """Hash of all that the decoded images depend on; contents by size and date of the files."""
    found = hashlib.sha256(f"2 {files.channels} {files.image_size}".encode())
    for path in files.paths:
        about = Path(path).stat()
        found.update(f"{path} {about.st_size} {about.st_mtime_ns}\n".encode())
    return found.hexdigest()[:16]
