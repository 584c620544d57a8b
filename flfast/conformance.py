"""The command `python -m flfast.conformance LEVEL [ROW...]`: published results, run and judged.

Exit codes: 0; 1 if a row misses that is known to hold, or held before in the same folder; 2 for a
wrong word; 73 if another process runs rows in the folder; 75 if it was stopped, and goes on with
the same command.
"""

import sys
from pathlib import Path

from flfast import train
from flfast.config.errors import ConfigError
from flfast.config.explain import run_command
from flfast.state.stop_requests import StoppedError
from flfast.zoo.commands.conformance.row_files import LEVELS, read_rows

USAGE = """\
python -m flfast.conformance LEVEL [ROW...] [key=value ...]

  LEVEL              fast (minutes, needs no data), day (whole papers), gpu, gpu_day
  ROW                names of rows of the level (all)
  folder=FOLDER      runs and results (conformance); runs that have finished there are kept
  workers=auto|N     runs at a time (auto: one per GPU, or per core of the CPU)

Rows that need data look for them in the folder of the variable FLFAST_DATA. The folder gets
conformance.html and conformance.json. The exit code is 1 if a row misses that held before.
"""


def conformance(words: list[str]) -> int:
    """Run and judge rows, print a line for each, and write page and record; the exit code.

    The words are those of the command line.

    Raises:
        ConfigError: naming the wrong word, and what is allowed.
        StoppedError: if a run received a stop request.
    """
    options = {"folder": "conformance", "workers": "auto"}
    names = [word for word in words if "=" not in word]
    for word in words:
        key, equals, value = word.partition("=")
        if equals and (key not in options or not value):
            raise ConfigError(f"{word}: allowed: folder=FOLDER, workers=auto, workers=N")
        if equals:
            options[key] = value
    if not names:
        raise ConfigError(f"no level is given; allowed: {', '.join(LEVELS)}")
    rows = read_rows(names[0], names[1:])
    number = options["workers"]
    if number != "auto" and not (number.isdecimal() and int(number)):
        raise ConfigError(f"workers={number}: allowed: workers=auto, or a number >= 1")
    workers = number if number == "auto" else int(number)
    from flfast.zoo.commands.conformance.conformance_files import examine_rows

    try:
        return examine_rows(rows, Path(options["folder"]), train.run_job, workers=workers)
    except StoppedError:
        sys.stderr.write("flfast.conformance: stopped; the same command goes on\n")
        raise


def main() -> None:
    """Run the command."""
    run_command("flfast.conformance", USAGE, lambda words: sys.exit(conformance(words)))


if __name__ == "__main__":
    main()
