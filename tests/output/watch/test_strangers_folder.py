"""Every reader of a run's folder gets folders of strangers: it ends, and harms nobody."""

import os
import re
import sys
from contextlib import suppress
from functools import partial

import pytest
from run_folders import accuracies, write_run
from sampling import others_slow

import flfast
from flfast import watch
from flfast.report import main as report

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")
CLEAR = "\x1b[2J\x1b]0;mine\x07\u202e"
TABLES = ("metrics.csv", "clients.csv", "train.log", "partition.json", "evaluation/confusion.csv")
HYDRA = ("config.yaml", "overrides.yaml", "hydra.yaml")
FILES = [*TABLES, *(f".hydra/{name}" for name in HYDRA), ".lock", ".hydra/failed"]

CONTENTS = {
    "nothing": b"",
    "bytes": b"\xff\xfe\x00\x01",
    "control characters": f"{CLEAR}: {CLEAR}\n".encode(),
    "a list": b"[1, 2]\n",
    "a number": b"1\n",
    "deep": b"[" * 100_000,
    "anchors": b"a: &a [1]\nb: *a\n",
    "rows of no round": b"round,global/accuracy\ninf,1\nnan,2\n" + b"9" * 5000 + b",3\n",
    "rows that are no numbers": f"round,global/accuracy\n1,{CLEAR}\n2,[/red]\n".encode(),
    "counts of nothing": b"set,class,0,1\nglobal,0,1,-1\nglobal,1,-2,1\n",
    "a warning": f"[2020][x][WARNING] - {CLEAR}\n[2020][x][WARNING] - [/red]\n".encode(),
}


@pytest.fixture
def run(tmp_path):
    """A run in `folder`, beside a file `mine` of somebody else."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "folder" / "evaluation").mkdir(parents=True)
    clients = [{"round": n, "client_id": 0, "local/accuracy": 0.5} for n in range(3)]
    return write_run(
        tmp_path / "folder",
        config={"rounds": 2, "trainer": {"fast_dev_run": False}},
        choices={"algorithm": f"fed{CLEAR}"},
        rows=accuracies(0.1, 0.2, 0.3),
        clients=clients,
    )


def read_all(folder, monkeypatch, capsys):
    """What watch, report and Python show of a folder; each ends, or refuses it in one message."""

    def followed():
        monkeypatch.setattr(sys, "argv", ["watch", str(folder), "--once"])
        watch.main()

    def asked(name):
        run = flfast.Run(folder)
        try:
            value = getattr(run, name)
            _ = value() if name == "plot" else value
        except (ValueError, OSError) as error:  # ConfigError is a ValueError
            print(str(error))  # noqa: T201

    reads = [followed, lambda: report([str(folder)])]
    if not CONTROL.search(str(folder)):  # else errors name it as the program does
        reads += [partial(asked, name) for name in ("history", "clients", "plot", "model")]
    for read in reads:
        with suppress(SystemExit):
            read()
    shown = capsys.readouterr()
    return shown.out + shown.err


@pytest.mark.parametrize("name", others_slow(FILES, FILES[:1]))
def test_a_file_with_anything_in_it(run, name, monkeypatch, capsys):
    for content in CONTENTS.values():
        (run / name).write_bytes(content)
        assert not CONTROL.search(read_all(run, monkeypatch, capsys))


@pytest.mark.parametrize("name", others_slow(FILES, FILES[1::4]))
def test_what_is_no_file_is_not_opened_and_links_are_not_followed(run, name, monkeypatch, capsys):
    mine = run.parent / "mine"
    kinds = {
        "a pipe": os.mkfifo,
        "a device": lambda path: path.symlink_to("/dev/zero"),
        "a link": lambda path: path.symlink_to(mine),
        "a folder": lambda path: path.mkdir(),
    }
    for make in kinds.values():
        (run / name).unlink(missing_ok=True)
        make(run / name)
        read_all(run, monkeypatch, capsys)
    assert mine.read_text() == "mine"


def test_reports_are_not_written_through_links(run):
    mine = run.parent / "mine"
    for name in ("report.html", "report.html.tmp"):
        (run / name).symlink_to(mine)
    assert report([str(run)]) == 0
    assert "<html" in (run / "report.html").read_text(encoding="utf-8")
    assert mine.read_text() == "mine"


def test_names_of_folders_are_printed_without_control_characters(run, monkeypatch, capsys):
    for name in (f"a{CLEAR}", "[red]"):
        run = run.rename(run.with_name(name))
        assert not CONTROL.search(read_all(run, monkeypatch, capsys))
