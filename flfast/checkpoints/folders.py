"""Layout of checkpoints on the disk, one folder each. Torch-free.

    RUN_DIR/checkpoints/round-000012/
        about.json            written last: round, config, versions, sizes and digests of the files
        server.pt             server state and rows so far, written by rank 0
        clients-0-of-2.pt     client states, written by the rank that owns them
        records.pt            what the server keeps of clients, if the algorithm has records
        clients-0-of-2.1.pt   states that have changed since the file without a number was written,
        clients-0-of-2.2.pt   and those that have changed since; records likewise

Files that the checkpoint before has, too, are hard links to it.

While files are being written, the folder is called `round-000012.part`. It is renamed once all
of them are on the disk.
"""

import json
from collections.abc import Container
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, NonNegativeInt, PositiveInt, ValidationError

from flfast.state.real_folder import real_folder
from flfast.state.regular_file import read_file

ABOUT = "about.json"
SERVER = "server.pt"
RECORDS = "records.pt"
FORMAT = 5


class BrokenCheckpointError(ValueError):
    """A checkpoint whose files are missing, damaged, or not those of this run."""


class Checkpoint(NamedTuple):
    """A checkpoint whose files exist and have the sizes that were written."""

    path: Path
    about: dict[str, Any]

    @property
    def round_idx(self) -> int:
        """The last finished round."""
        return int(self.about["round"])

    @property
    def run_dir(self) -> Path:
        """Folder of the run that wrote it."""
        return self.path.parent.parent


def clients_file(rank: int, size: int) -> str:
    """Name of the file with a rank's client states; `size` is the world size."""
    return f"clients-{rank}-of-{size}.pt"


def changes_file(name: str, number: int) -> str:
    """Name of the `number`th file of changes, from 1, of a file of states or records."""
    return f"{name.removesuffix('.pt')}.{number}.pt"


def parts_of(name: str, files: Container[str]) -> list[str]:
    """A file of states or records, and those of its changes, in order, as far as there are any."""
    numbers = takewhile(lambda number: changes_file(name, number) in files, count(1))
    return [name, *(changes_file(name, number) for number in numbers)]


def checkpoints_dir(run_dir: Path) -> Path:
    """Folder of all checkpoints of a run."""
    return run_dir / "checkpoints"


def checkpoint_dir(run_dir: Path, round_idx: int) -> Path:
    """Folder of the checkpoint of a round."""
    return checkpoints_dir(run_dir) / f"round-{round_idx:06d}"


def checkpoint_folders(run_dir: Path) -> list[Path]:
    """Folders of the run's finished checkpoints, newest first; they may be damaged."""
    found = checkpoints_dir(run_dir).glob("round-*")
    numbered = [path for path in found if path.name.removeprefix("round-").isdecimal()]
    return sorted(numbered, key=round_of, reverse=True)


def round_of(path: Path) -> int:
    """The round of a checkpoint's folder."""
    return int(path.name.removeprefix("round-"))


def partial_folders(run_dir: Path) -> list[Path]:
    """Folders of checkpoints that were not finished, because the run was killed."""
    return list(checkpoints_dir(run_dir).glob("round-*.part"))


def newer_folders(run_dir: Path, round_idx: int) -> list[Path]:
    """Folders of the run's checkpoints of later rounds."""
    return [path for path in checkpoint_folders(run_dir) if round_of(path) > round_idx]


def expired_folders(run_dir: Path, *, keep_last: int, best: int | None) -> list[Path]:
    """Folders of checkpoints that are neither of the `keep_last` newest nor of the best round."""
    return [path for path in checkpoint_folders(run_dir)[keep_last:] if round_of(path) != best]


class _File(BaseModel, strict=True):
    bytes: int
    digest: str


class _Call(BaseModel, strict=True, extra="forbid"):
    engines: dict[str, str | None] = {}
    widths: dict[str, dict[str, PositiveInt]] = {}


class _Decided(_Call, extra="allow"):
    """`Engine.decided` of a rank; members, fine-tuning and further calls have their own."""

    __pydantic_extra__: dict[str, "_Decided"]


class _About(BaseModel, strict=True):
    """Contents of `about.json`, as far as they are read."""

    round: NonNegativeInt
    tables: dict[str, int]
    world_size: NonNegativeInt
    config: dict[str, Any]
    sizes: dict[Literal["batch_size", "micro_batch"], PositiveInt]
    data: str
    loggers: dict[str, Any]
    files: dict[str, _File]
    decided: list[_Decided] = []


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a folder.

    Raises:
        BrokenCheckpointError: if the folder holds no checkpoint, or a file lacks bytes.
    """
    try:
        about = json.loads(read_file(path / ABOUT))
    except (OSError, ValueError, RecursionError) as error:
        raise BrokenCheckpointError(f"{path}: {error or type(error).__name__}") from None
    found = about.get("format") if isinstance(about, dict) else None
    if type(found) is not int or found != FORMAT:
        raise BrokenCheckpointError(f"{path}: has format {found}, this flfast reads {FORMAT}")
    _check_about(path, about)
    number = path.name.removeprefix("round-")
    if number.isdecimal() and int(number) != about["round"]:
        raise BrokenCheckpointError(f"{path}: {ABOUT} is of round {about['round']}")
    for name, facts in about["files"].items():
        found = (path / name).stat().st_size if (path / name).is_file() else "no"
        if found != facts["bytes"]:
            raise BrokenCheckpointError(
                f"{path}: {name} has {found} bytes, {facts['bytes']} were written"
            )
    return Checkpoint(path, about)


def _check_about(path: Path, about: dict[str, Any]) -> None:
    fields = _About.model_fields.items()
    missing = [name for name, field in fields if field.is_required() and name not in about]
    if missing:
        raise BrokenCheckpointError(f"{path}: {ABOUT} lacks {', '.join(missing)}")
    wrong: list[str] = []
    try:
        _About.model_validate(about)
    except ValidationError as error:
        wrong += dict.fromkeys(str(problem["loc"][0]) for problem in error.errors())
    if not wrong and not _are_complete(about["files"], about["world_size"]):
        wrong = ["world_size", "files"]
    if wrong:
        values = ", ".join(f"{name}={about[name]!r}" for name in wrong)
        raise BrokenCheckpointError(f"{path}: {ABOUT} has invalid values: {values}")


def _are_complete(files: dict[str, Any], size: int) -> bool:
    """Whether these are the files of a checkpoint of `size` ranks."""
    # Their number comes first: a list of their names may be huge.
    if size >= len(files):
        return False
    kept = [*(clients_file(rank, size) for rank in range(size)), *({RECORDS} & files.keys())]
    return files.keys() == {SERVER, *(part for name in kept for part in parts_of(name, files))}


def find_checkpoints(resume: str, run_dir: Path) -> list[Checkpoint]:
    """Checkpoints to resume from, in the order to try; empty for a new run.

    Args:
        resume: `auto`, a run folder, or the folder of one checkpoint.
        run_dir: folder of the run to resume; its checkpoints are those of `auto`.

    Raises:
        ValueError: if `resume` is a path without a checkpoint, or no checkpoint can be read.
    """
    if resume == "auto":
        return _readable(run_dir)
    path = real_folder(resume)
    if (path / ABOUT).exists() or path.name.startswith("round-"):
        return [read_checkpoint(path)]
    newest = checkpoint_folders(path)
    if not newest:
        raise ValueError(
            f"resume={resume}: there is no checkpoint; allowed: auto, a run folder with "
            f"checkpoints/, or one of the folders in there"
        )
    return [read_checkpoint(newest[0])]


def _readable(run_dir: Path) -> list[Checkpoint]:
    paths, found = checkpoint_folders(run_dir), list[Checkpoint]()
    for path in paths:
        with suppress(BrokenCheckpointError):
            found.append(read_checkpoint(path))
    if paths and not found:
        raise ValueError(
            f"resume=auto: no checkpoint in {checkpoints_dir(run_dir)} can be read; set another "
            f"hydra.run.dir to start a new run"
        )
    return found
