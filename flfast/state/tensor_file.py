"""Writes files of tensors that survive a power cut: written, synced, and renamed."""

import io
import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import IO, Any, cast

import safetensors.torch
import torch
from torch import Tensor

from flfast.state.messages import naming
from flfast.state.pickle_bounds import check_pickle
from flfast.state.regular_file import opener


def write_tensors(path: Path, value: dict[str, Any], *, buffered: Event | None = None) -> None:
    """Write tensors, numbers and text in nested dicts and lists.

    The file has its name only after all of its contents are on the disk. The value is not copied,
    and must not change until all data is in the file's buffers; then `buffered` is set.

    Raises:
        OSError: with the path, if the disk is full or read-only.
    """
    with _new_file(path) as file:
        recorder = _ErrorRecorder(file)
        try:
            torch.save(value, cast(IO[bytes], recorder))
        except RuntimeError as error:
            raise recorder.error or error from None
        if buffered is not None:
            buffered.set()


def check_tensors(path: str | Path) -> None:
    """Refuse a stranger's file that `torch.load(weights_only=True)` might read for ever.

    Raises:
        ValueError: if it is one; damaged ones raise other errors, too.
    """
    with open(path, "rb") as file:  # noqa: PTH123 - links of the user are followed
        if file.read(4) != b"PK\x03\x04":
            file.seek(0)
            for _ in range(5):  # what torch < 1.6 wrote: version and system, values, storages
                check_pickle(file)
            return
        sizes = [member.file_size for member in zipfile.ZipFile(file).infolist()]
        if sum(sizes) > os.fstat(file.fileno()).st_size:
            raise ValueError("is packed, or holds bytes twice, as torch writes no file")
    content = torch._C.PyTorchFileReader(str(path)).get_record("data.pkl")  # noqa: SLF001
    check_pickle(io.BytesIO(content))


def write_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors on the CPU in the format of safetensors, which other frameworks read.

    Tensors that share memory are stored once each. The file has its name only after all of its
    contents are on the disk. One leaf at most is copied, and only if it is not contiguous.

    Raises:
        OSError: with the path, if the disk is full or read-only.
    """
    # The library's `save` holds the model twice more. Its `save_file` holds nothing, but makes a
    # file that only its owner can read, and does not say which error of the disk it met.
    leaves = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, leaf in leaves:
        start, end = end, end + leaf.nbytes
        offsets = [start, end]
        header[name] = _description(leaf) | {"shape": [*leaf.shape], "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that every number lies at a multiple of its size
    with _new_file(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, leaf in leaves:
            file.write(leaf.contiguous().view(-1).view(torch.uint8).numpy().data)


def _description(leaf: Tensor) -> dict[str, Any]:
    """What the library's header says of an empty tensor with this type."""
    content = safetensors.torch.save({"leaf": leaf.new_empty(0)})
    found: dict[str, Any] = json.loads(content[8:])["leaf"]
    return found


@contextmanager
def _new_file(path: Path) -> Iterator[io.BufferedWriter]:
    """Context of a file that gets its name only after all of its contents are on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    with naming(path), open(temporary, "wb", opener=opener) as file:
        yield file
        sync(file)
    temporary.rename(path)


class _ErrorRecorder(io.RawIOBase):
    """Records why a write failed: torch's exception does not say."""

    def __init__(self, file: io.BufferedWriter) -> None:
        super().__init__()
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise


def sync(file: io.BufferedIOBase) -> None:
    """Flush the file's buffers to the disk."""
    file.flush()
    os.fsync(file.fileno())
