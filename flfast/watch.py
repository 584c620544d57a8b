"""`python -m flfast.watch [FOLDER]` follows a run or a sweep until it ends.

It only reads files, so it may run in another terminal, or on another machine that sees the folder.
Where its output is no terminal, it prints a line for each round. Exit code 0; 2 if the folder
holds no run.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from flfast.output.results.outcome import is_locked
from flfast.output.results.runs import read_each
from flfast.output.watch.folder import Progress, jobs_of, newest, read_progress
from flfast.output.watch.view import line, view
from flfast.state.messages import printable
from flfast.state.output_streams import output_is_read, surviving_output


@surviving_output()
def main() -> None:
    """Run the command."""
    handler, said = logging.StreamHandler(), set[str]()

    def is_new(record: logging.LogRecord) -> bool:  # folders are read again at each look
        before = len(said)
        said.add(record.getMessage())
        return len(said) > before

    handler.addFilter(is_new)
    logging.basicConfig(handlers=[handler], format="%(message)s")
    parser = argparse.ArgumentParser(prog="flfast.watch", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, help="of a run or a sweep; default: the newest one"
    )
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two looks, > 0")
    parser.add_argument("--once", action="store_true", help="print the state and end")
    given = parser.parse_args()
    if not given.every > 0:
        parser.error(f"--every={given.every}; allowed: a number > 0")
    folder = given.folder or newest(Path())
    if folder is None:
        parser.error("there is no run below outputs or multirun; allowed: FOLDER of a run")
    if not jobs_of(folder) and not is_locked(folder):  # a run that starts has the lock first
        parser.error(f"{folder}: no run is there; allowed: a folder with .hydra")
    try:
        _watch(folder, every=given.every, once=given.once)
    except KeyboardInterrupt:
        pass  # the run goes on
    except (OSError, ValueError) as error:
        parser.error(str(error))


def _watch(folder: Path, *, every: float, once: bool) -> None:
    console = Console()
    if once or not console.is_terminal:
        follow_in_lines(folder, every=every, once=once)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            jobs = _read(folder)
            live.update(view(jobs), refresh=True)
            if not _goes_on(folder, jobs):
                return
            time.sleep(every)


def follow_in_lines(folder: Path, *, every: float, once: bool) -> None:
    """Print a line for each round that a job has newly written, and the whole state at the end."""
    shown: dict[Path, int] = {}
    while True:
        jobs = _read(folder)
        for job in jobs:
            if not once and job.last > shown.get(job.folder, -1):
                shown[job.folder] = job.last
                sys.stdout.write(f"{printable(job.folder.name)}  {line(job)}\n")
        if once or not _goes_on(folder, jobs) or not output_is_read():
            Console(width=160).print(view(jobs))
            return
        time.sleep(every)


def _goes_on(folder: Path, jobs: list[Progress]) -> bool:
    """Whether a run goes on, or a sweep, which is between two jobs at times."""
    return is_locked(folder) or any(job.outcome == "running" for job in jobs)


def _read(folder: Path) -> list[Progress]:
    return read_each(jobs_of(folder), read_progress)


if __name__ == "__main__":
    main()
