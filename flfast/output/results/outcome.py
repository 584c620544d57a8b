"""What has become of a run, as its folder tells: one function for all who ask. Torch-free."""

import json
import logging
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from flfast.state.messages import printable
from flfast.state.regular_file import opener, read_file
from flfast.state.stop_requests import StoppedAtEndError, StoppedError

log = logging.getLogger(__name__)

RESULT = "result.json"
"""File in a run's folder: its outcome, result and config. It exists once the run is accepted."""

LOCK = ".lock"
"""File in a run's folder; the run's processes hold a lock on it."""

EXIT_BUSY = 73
"""Exit code if another process writes into the folder: EX_CANTCREAT of sysexits.h."""

_TRACES = (
    *("metrics.csv", "clients.csv", "events.csv"),
    *("checkpoints/round-*", "model.pt", "shared.pt", "personal/*.pt"),
)


Outcome = Literal["empty", "running", "finished", "stopped", "failed", "killed"]
"""What has become of a run.

    empty       the folder holds no run
    running     a process works in the folder
    finished    it did all of its rounds, or those that `stop` or a budget left it
    stopped     it ended on request, such as SIGTERM
    failed      it ended with an error
    killed      its process ended without a word
"""


class Result(NamedTuple):
    """Contents of `result.json`.

    Attributes:
        outcome: as far as the run itself could say.
        config: config of the run, as JSON has it.
        value: `optimized_metric` after the last round; None if it was not measured.
        error: message of the error that ended a failed run, in one line.
        launch: name of the launch that runs it (`environment.launch_id`), if it has one.
    """

    outcome: Outcome
    config: Any
    value: float | None = None
    error: str = ""
    launch: str | None = None


def outcome_of(error: BaseException | None) -> Outcome:
    """The outcome of a run that this exception ended; None: it went through."""
    if error is None or isinstance(error, StoppedAtEndError):
        return "finished"
    return "stopped" if isinstance(error, StoppedError) else "failed"


def read_result(folder: Path) -> Result | None:
    """What the run in a folder said of itself; None if it said nothing that can be read."""
    try:
        found = json.loads(read_file(folder / RESULT))
        outcome, value = found["outcome"], found["value"]
        if type(value) not in (int, float, type(None)):
            return None
        error = printable(str(found.get("error", "")))
        launch = found.get("launch")
        result = Result(outcome, found["config"], value, error, launch)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return result if outcome in get_args(Outcome) else None


def write_result(folder: Path, result: Result) -> None:
    """Write `result.json`; a kill leaves the old file or the new one.

    Raises:
        OSError: if it cannot be written.
    """
    part = folder / f"{RESULT}.part"
    part.write_text(json.dumps(result._asdict(), indent=1) + "\n", encoding="utf-8")
    part.replace(folder / RESULT)


def outcome(folder: Path, *, own_lock: bool = False) -> Outcome:
    """What has become of the run in a folder.

    Where a disk has no locks, a run that goes on looks as if it was killed. The lock is an
    `own_lock` if it is that of a command which asks before its own run begins.
    """
    said = read_result(folder)
    if said is None and (folder / RESULT).exists():
        log.warning("%s cannot be read; the outcome follows from other files", folder / RESULT)
    if said is not None and said.outcome != "running":
        return said.outcome
    if is_locked(folder) and not own_lock:
        return "running"
    there = said is not None or holds_run(folder) or (folder / ".hydra").exists()
    return "killed" if there else "empty"


def holds_run(folder: Path) -> bool:
    """Whether a folder holds what a run could lose: rows, checkpoints, models, or a result."""
    said = read_result(folder)
    if said is not None and said.outcome == "finished":
        return True
    return any(next(folder.glob(pattern), None) is not None for pattern in _TRACES)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a run's folder; False where there are no locks."""
    import fcntl  # Windows has none

    try:
        with open(folder / LOCK, encoding="utf-8", opener=opener) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def log_lines(folder: Path) -> list[str]:
    """Lines of a run's log, without control characters; empty if there is none.

    Raises:
        OSError: with the path, if it is no file.
    """
    path = folder / "train.log"
    if not path.exists():
        return []
    return printable(read_file(path).decode("utf-8", errors="replace")).split("\n")
