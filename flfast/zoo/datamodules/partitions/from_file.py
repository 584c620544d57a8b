"""The partition in a file, such as `partition.npz` of another run.

An array `owner` has the client of each training example, in the order of the data, without the
server's examples. A text `digest`, if there is one, is compared with that of the data's targets.
`numpy.savez("partition.npz", owner=owner)` writes such a file.
"""

import zipfile
from pathlib import Path

import numpy as np

from flfast.datamodules.bounds import MemoryBoundError, check_archive


def from_file(num_examples: int, *, path: str, digest: str) -> np.ndarray:
    """Owner of every example, int64 [N].

    Raises:
        ValueError: if the file cannot be read, or is of other data.
    """
    owner, written = _read(path)
    if len(owner) != num_examples:
        raise ValueError(
            f"partition.path={path}: has owners of {len(owner):,} examples, the data have "
            f"{num_examples:,} that clients share; allowed: the partition of a run with the same "
            f"data and split.server_examples"
        )
    if written is not None and written != digest:
        raise ValueError(
            f"partition.path={path}: is of other data, whose targets differ; allowed: the "
            f"partition of a run with the same data and, if the server has examples or the test "
            f"set is drawn, the same seed"
        )
    if not 0 <= owner.min() <= owner.max() < num_examples:
        raise ValueError(
            f"partition.path={path}: has clients {owner.min()} to {owner.max()}; allowed: clients "
            f"numbered 0, 1, ..., each with an example"
        )
    return owner.astype(np.int64)


def _read(path: str) -> tuple[np.ndarray, str | None]:
    """Owners, integers [N], N >= 1, and the digest."""
    try:
        # Opened here: numpy leaves a broken file open.
        check_archive(Path(path), {"owner.npy", "digest.npy"})
        with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name in {"owner", "digest"}}
    except MemoryBoundError as error:
        raise ValueError(f"partition.path={error}") from None
    except OSError as error:
        reason = error.strerror or "is no NPZ file"
        raise ValueError(f"partition.path={path}: {reason}; {_ALLOWED}") from None
    except (ValueError, EOFError, AttributeError, TypeError, MemoryError, zipfile.BadZipFile):
        raise ValueError(f"partition.path={path}: is no NPZ file; {_ALLOWED}") from None
    owner = arrays.get("owner", np.zeros(0))
    if owner.dtype.kind not in "iu" or owner.ndim != 1 or not len(owner):
        raise ValueError(
            f"partition.path={path}: has no array `owner` of integers [N]; {_ALLOWED}"
        )
    return owner, str(arrays["digest"]) if "digest" in arrays else None


_ALLOWED = "allowed: the partition.npz of a run, or one that numpy.savez wrote"
