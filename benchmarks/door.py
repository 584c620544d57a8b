"""The first hour of a stranger, with a wheel, not in the checkout: `python -m benchmarks.door`.

The folder of the commands has a space and a symbolic link in its path, and what they name lies
beside it, behind `..`. Two fresh environments start at once, with an empty cache of kernels. Each
step prints a line: `ok` or `differs`, its seconds, and what it is. The exit code is 1 if a step
differs. It needs `uv` and a package index, and takes about ten minutes on two cores.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIVE = README.partition("## Five commands")[2].partition("```\n")[2].partition("```")[0]
SNIPPET = README.partition("```python\n")[2].partition("```")[0]
NOTEBOOK = ROOT / "notebooks" / "2-own-data-and-model.ipynb"
OF_OTHERS = {"PYTHONPATH", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT"}  # variables not to inherit
TRAIN = "python -m flfast.train"
LONGEST_S, SILENCE_S = 300, 30
"""Seconds of a step; and between two lines of a run, if the first one gives no reason."""

SOURCE = """
from torch import nn

def net(*, input_shape, num_classes):
    return nn.Sequential(nn.Linear(*input_shape, 8), nn.ReLU(), nn.Linear(8, num_classes))
"""


class Ended(NamedTuple):
    """A command that is over.

    Attributes:
        code: exit code; None: it took longer than it may.
        text: what it wrote on both streams.
        silence: seconds between two lines, the most of all, and the line before them.
    """

    code: int | None
    text: str
    silence: tuple[float, str]


class Door:
    """A stranger's folders, environments and steps.

    Attributes:
        here: the folder of all commands, by its path through the link.
        failed: names of the steps that differ.
    """

    def __init__(self, work: Path) -> None:
        (work / "a disk" / "my experiments").mkdir(parents=True)
        (work / "a link").symlink_to(work / "a disk")
        self.work, self.here = work, work / "a link" / "my experiments"
        self.failed: list[str] = []

    def start(self, command: str, environment: str = "first") -> subprocess.Popen[str]:
        """A process of the command, as a shell in `here` would start it."""
        variables = {k: v for k, v in os.environ.items() if k not in OF_OTHERS}
        path = f"{self.work / environment / 'bin'}{os.pathsep}{variables['PATH']}"
        variables |= {"PATH": path, "PWD": str(self.here), "PYTHONUNBUFFERED": "1"}
        variables |= {"XDG_CACHE_HOME": str(self.work / "cache"), "MPLBACKEND": "agg"}
        return subprocess.Popen(
            ("bash", "-c", command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.here,
            env=variables,
            start_new_session=True,
        )

    def step(self, name: str, check: Callable[[], str | None]) -> None:
        """Run a step, which returns why it differs, or None; print its line."""
        start = time.monotonic()
        try:
            reason = check()
        except Exception as error:  # noqa: BLE001 - the other steps still run
            reason = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - start
        sys.stdout.write(f"{'differs' if reason else 'ok':7} {seconds:4.0f} s  {name}\n")
        if reason:
            self.failed.append(name)
            sys.stdout.writelines(f"    {line}\n" for line in reason.splitlines()[-12:])
        sys.stdout.flush()

    def command(self, name: str, command: str, *files: str, code: int = 0, says: str = "") -> None:
        """A step of one command: its exit code, the files that it leaves, and what it says."""

        def check() -> str | None:
            done = ended(self.start(command))
            missing = [file for file in files if not [*self.here.glob(file)]]
            if done.code != code:
                return f"{done.text}\nexit code {done.code}, not {code}: {command}"
            if missing or says not in done.text:
                return f"{done.text}\n{command}: lacks {missing or says}"
            return "there is a traceback" if "Traceback" in done.text else None

        self.step(name, check)


def ended(process: subprocess.Popen[str], limit: float = LONGEST_S) -> Ended:
    """The process, read until its end or the limit in seconds, when its whole group is killed."""
    lines: list[tuple[float, str]] = [(time.monotonic(), "the start")]
    assert process.stdout is not None
    stdout = process.stdout
    reader = Thread(target=lambda: lines.extend((time.monotonic(), line) for line in stdout))
    reader.start()
    try:
        code: int | None = process.wait(limit)
    except subprocess.TimeoutExpired:
        code = None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # none of its processes outlives a command
    process.wait()
    reader.join()
    stdout.close()
    times = [*lines, (time.monotonic(), "")]
    silence = max((b - a, said) for (a, said), (b, _) in pairwise(times))
    return Ended(code, "".join(line for _, line in lines[1:]), silence)


def install(door: Door) -> str | None:
    """A wheel of the checkout, in two environments."""
    quiet = ("uv", "--quiet", "--no-config")
    build = (*quiet, "build", "--wheel", "--out-dir", str(door.work / "dist"), str(ROOT))
    subprocess.run(build, check=True, timeout=600, cwd=door.work)
    (wheel,) = (door.work / "dist").glob("*.whl")
    for name, extras in (("first", "[notebook,table]"), ("second", "")):
        place = str(door.work / name)
        for line in (("venv", place), ("pip", "install", "--python", place, f"{wheel}{extras}")):
            subprocess.run((*quiet, *line), check=True, timeout=600, cwd=door.work)
    done = ended(door.start("python -c 'import flfast; print(flfast.__file__)'"))
    return None if str(door.work) in done.text else f"not the wheel's: {done.text}"


def two_at_once(door: Door) -> str | None:
    """README's first run by both: equal tables, and no long silence without a reason."""
    processes = [door.start(TRAIN, name) for name in ("first", "second")]
    with ThreadPoolExecutor() as threads:
        results = [*threads.map(ended, processes)]
    tables = {"\n".join(re.findall(r"^ \w+/\w+ .*$", done.text, re.MULTILINE)) for done in results}
    for done in results:
        seconds, said = done.silence
        if done.code != 0:
            return f"{done.text}\nexit code {done.code}"
        if seconds > SILENCE_S and not re.search(r"compil|wait", said):
            return f"{seconds:.0f} s without a word after: {said}"
    return None if len(tables) == 1 and "accuracy" in tables.pop() else "the tables differ"


def stop_and_go_on(door: Door) -> str | None:
    """SIGTERM in a run, and the same command with another spelling of the folder."""
    words = f"{TRAIN} rounds=300 eval_every=50 checkpoint.every=50 resume=auto"
    process = door.start(f"exec {words} hydra.run.dir=../out/stopped")
    table = door.here.parent / "out" / "stopped" / "metrics.csv"
    deadline = time.monotonic() + LONGEST_S
    while not (table.exists() and table.read_text().count("\n") > 3):
        if process.poll() is not None or time.monotonic() > deadline:
            return f"{ended(process, 1).text}\nno run to stop"
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    if (done := ended(process)).code != 75:
        return f"{done.text}\nexit code {done.code}, not 75"
    again = f"{words} hydra.run.dir='{door.here}/..//out/./stopped/'"
    done = ended(door.start(again))
    return None if done.code == 0 else f"{done.text}\nexit code {done.code}: {again}"


def steps(door: Door) -> None:
    """All steps, in the order of a first hour."""
    door.step("a wheel, installed twice", lambda: install(door))
    if door.failed:
        return
    door.step("two environments at once, nothing compiled yet", lambda: two_at_once(door))
    door.command("a misspelt key", f"{TRAIN} ruonds=3", code=2, says="did you mean rounds?")
    run = f"{TRAIN} rounds=2 hydra.run.dir=../out/x"
    door.command("a run in ../out/x", run, "../out/x/model.pt", "../out/x/metrics.csv")
    door.command("the same folder again", run, code=2, says="resume=auto")
    door.command("the same with resume=auto", f"{run} resume=auto")
    door.step("SIGTERM, and on in the same folder", lambda: stop_and_go_on(door))
    door.command("evaluate", "python -m flfast.evaluate run=../out/x split=test", says="accuracy")
    door.command("report", "python -m flfast.report ../out/x", "../out/x/report.html")
    door.command(
        "export", "python -m flfast.export run=../out/x format=torch", "../out/x/model.pt2"
    )
    sweep = f"{TRAIN} -m seed=0,1 rounds=2 hydra.sweep.dir=../sweep"
    door.command("a sweep in ../sweep", sweep, "../sweep/report.html", "../sweep/comparison.csv")
    door.command("a report of it", "python -m flfast.report ../sweep", "../sweep/report.html")

    (door.here / ".." / "data").mkdir()
    rows = [f"{i % 7},{i % 5},site {i % 4},{'ab'[i % 7 > 3]}" for i in range(400)]
    text = "\n".join(["x 1,x 2,site,target", *rows])
    (door.here / ".." / "data" / "my table.csv").write_text(text, encoding="utf-8")
    (door.here / "mine.py").write_text(SOURCE, encoding="utf-8")
    words = (
        *("data=table", "data.path=../data/my table.csv", "data.owner=site", "partition=natural"),
        *("model=custom", "model._target_=mine.net", "rounds=3", "hydra.run.dir=../out/own"),
    )
    own = f"{TRAIN} {shlex.join(words)}"
    door.command("a table and a model of one's own", own, "../out/own/model.pt")
    door.command("its report", "python -m flfast.report ../out/own", "../out/own/report.html")

    for line in FIVE.splitlines():
        command = line.partition("#")[0].strip().replace("FOLDER", "../out/five")
        door.command(f"README: {command}", command)
    (door.here / "snippet.py").write_text(SNIPPET, encoding="utf-8")
    door.command("README's program", "python snippet.py")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (door.here / "notebook.ipy").write_text("\n".join(code), encoding="utf-8")
    door.command("a notebook", "ipython --no-banner notebook.ipy", "cancer.csv")


def main() -> None:
    """Walk through the door in a temporary folder, which is removed afterwards."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.door", description=__doc__)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        door = Door(Path(work).resolve())
        steps(door)
    sys.exit(1 if door.failed else 0)


if __name__ == "__main__":
    main()
