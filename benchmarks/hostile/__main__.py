"""A hostile campaign: `python -m benchmarks.hostile [PART ...] [--seed N] [--jobs N]`.

| part | tries |
|---|---|
| `options` | odd values of any options |
| `files` | damaged files of data |
| `targets` | configs of strangers' runs that name commands |
| `chains` | kills of runs that keep much between rounds |

It prints a line for each case that is not as it should be, and a table. The exit code is their
number. What a case wrote is kept in the folder that `--keep` names.
"""

import argparse
import multiprocessing
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.hostile import chains, files, options, targets
from benchmarks.hostile.command import prepare

GOOD = {
    "options": {"done", "message"},
    "files": {"done", "message", "warned"},
    "targets": {"done", "message"},  # callbacks and loggers of a run are not opened
    "chains": {"identical"},
}
"""Verdicts that are as they should be."""

NUMBERS = {"options": 200, "files": 200, "targets": 40, "chains": 50}

Case = tuple[str, Callable[[Path], tuple[str, Any]]]


def main() -> None:
    """Run the parts, and print their tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.hostile")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(GOOD))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, help="of cases, or of kills")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--keep", type=Path, help="folder for what the cases wrote")
    chosen = parser.parse_args()
    unknown = {*chosen.parts} - {*GOOD}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: allowed: {', '.join(GOOD)}")
    prepare()
    bad = 0
    for part in chosen.parts or GOOD:
        with tempfile.TemporaryDirectory() as folder:
            num = chosen.number or NUMBERS[part]
            bad += _judge(part, num, chosen.seed, Path(folder), chosen.jobs, chosen.keep)
    sys.exit(min(bad, 100))


def _judge(part: str, num: int, seed: int, folder: Path, jobs: int, keep: Path | None) -> int:
    verdicts: Counter[str] = Counter()
    _cases_of_part[:] = _cases(part, num, seed, folder)
    places = [folder / str(number) for number in range(len(_cases_of_part))]
    # Processes: a fork of a process with threads may hang.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        for number, (verdict, ended) in enumerate(pool.map(_judged, places)):
            name = _cases_of_part[number][0]
            verdicts[verdict] += 1
            if verdict not in GOOD[part]:
                _say(f"{part} {number}: {verdict}: {name}")
                said = getattr(ended, "said", str(ended)).strip()
                _say("    " + "\n    ".join(said.splitlines()[-3:]))
            if keep is not None:
                place = keep / part / str(number)
                place.mkdir(parents=True, exist_ok=True)
                text = f"{name}\n{verdict}\n{getattr(ended, 'said', ended)}\n"
                (place / "screen.txt").write_text(text)
            shutil.rmtree(folder / str(number), ignore_errors=True)
    _say(
        f"{part}: "
        + ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    )
    return sum(count for verdict, count in verdicts.items() if verdict not in GOOD[part])


_cases_of_part: list[Case] = []
"""Inherited by the processes that judge them."""


def _judged(folder: Path) -> tuple[str, Any]:
    """The verdict on the case that the folder is for."""
    folder.mkdir()
    return _cases_of_part[int(folder.name)][1](folder)


def _cases(part: str, num: int, seed: int, folder: Path) -> Iterator[Case]:
    """(name, what judges it in a folder) of each case."""
    if part == "options":
        for words in options.cases(num, seed):
            yield " ".join(words), partial(options.judged, words)
    elif part == "files":
        for kind, damage, own in files.cases(num, seed):
            yield f"{kind}: {damage} ({own})", partial(files.judged, (kind, damage, own))
    elif part == "targets":
        run = targets.trained(folder / "trained")
        for case in targets.cases(num, seed):
            yield " ".join(map(str, case)), partial(_copied, run, partial(targets.judged, case))
    else:
        for name, chain in chains.cases(num, seed):
            yield name, partial(chains.judged, chain, seed=seed)


def _copied(run: Path, work: Callable[[Path], Any], folder: Path) -> Any:
    shutil.copytree(run, folder / "run")
    return work(folder)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
