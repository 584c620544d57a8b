"""Every reader of a damaged folder names the file, or goes on with the right numbers."""

import json
import logging
import re
import shutil
import sys

import pytest
from run_folders import accuracies, write_run
from sampling import others_slow

import flfast
from flfast import watch
from flfast.output.callbacks.comparison import write_comparison
from flfast.output.results.outcome import Result, write_result
from flfast.output.results.table import read_rows
from flfast.report import main as report

MANY = b"9" * 10_000
DEEP = b"[" * 10_000 + b"]" * 10_000


def last_row(change):
    """Damage to the last row of a table."""

    def damaged(content):
        *rest, last = content.splitlines(keepends=True)
        return b"".join([*rest, change(last.rstrip(b"\n")) + b"\n"])

    return damaged


def first_value(pattern, value):
    return lambda content: re.sub(pattern, lambda _: value, content, count=1, flags=re.M)


def with_column(name, value):
    def damaged(content):
        head, *rows = content.splitlines()
        return b"".join(b"%s\n" % line for line in [head + name, *(row + value for row in rows)])

    return damaged


HARMLESS = {
    "Windows line ends": lambda content: content.replace(b"\n", b"\r\n"),
    "a byte-order mark": lambda content: b"\xef\xbb\xbf" + content,
    "both": lambda content: b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"),
}
EVERYWHERE = {
    "UTF-16": lambda content: content.decode().encode("utf-16")[:-1],
    "Latin-1": lambda content: content[:20] + b"\xe9" + content[20:],
    "nothing": lambda content: b"",
    "an empty line": lambda content: b"\n",
    "cut": lambda content: content[:-4],
    "another type": lambda content: b"hello\n",
    "nested": lambda content: DEEP,
    "a folder": None,
}
OF_YAML = {
    "a list": lambda content: b"- [1, 2]\n",
    "null": lambda content: b"null\n",
    "a tag": lambda content: content + b"? !x a\n",
    "an object": lambda content: content + b"? !!python/object/apply:os.getcwd []\n",
    "anchors": lambda content: b"a: &a [1]\nb: &b [*a, *a]\n",
    "digits": lambda content: b"rounds: " + MANY + b"\n",
    "hexadecimal digits": lambda content: b"rounds: 0x" + MANY + b"\n",
}
OF_TABLES = {
    "fewer cells": last_row(lambda row: row.rpartition(b",")[0]),
    "more cells": last_row(lambda row: row + b",1"),
    "a quote": last_row(lambda row: b'"' + row),
    "a row twice": lambda content: content + content.splitlines(keepends=True)[-1],
    "a column twice": with_column(b",round", b",1"),
    "no column round": first_value(rb"^round", b"turn"),
    "no columns": lambda content: content.partition(b"\n")[2],
    **{
        f"round {value[:9].decode()}": last_row(lambda row, v=value: v + row[row.index(b",") :])
        for value in (b"-1", b"nan", b"inf", b"1e400", MANY, b"1_0", b"x", b"", b"2.5")
    },
    **{
        f"accuracy {value[:9].decode()}": last_row(lambda row, v=value: row.replace(b"0.5", v))
        for value in (b"1e400", MANY, b"x", b"0_5", b" 0.5", b'"0,5"')
    },
}
OF_NUMBERS = {
    f"{key} {value[:9].decode()}": first_value(rb"^( *\"?%s\"?: ).*?(?=,?$)" % key.encode(), line)
    for key, values in {
        "rounds": (b"-1", b"0", b"1e400", b".nan", b".inf", b"true", b"'2'", b"[2]", b"2.0"),
        "num": (b"-1", b"1e400", b".nan", b"true", b"'2'", b"[2]", b"2.0"),
        "outcome": (b"[]", b"7", b"null", b'"x"'),
        "value": (b"[]", b"true", b'"7"', MANY),
    }.items()
    for value in values
    for line in [
        {"num": b"    num: ", "rounds": b"rounds: "}.get(key, b' "%s": ' % key.encode()) + value
    ]
}
FILES = {
    ".hydra/config.yaml": {**EVERYWHERE, **OF_YAML},
    ".hydra/overrides.yaml": {**EVERYWHERE, **OF_YAML},
    ".hydra/hydra.yaml": {**EVERYWHERE, **OF_YAML},
    "metrics.csv": {**EVERYWHERE, **OF_TABLES},
    "clients.csv": {**EVERYWHERE, **OF_TABLES},
    "result.json": {**EVERYWHERE, "a list": lambda content: b"[1]\n"},
    "partition.json": {**EVERYWHERE, "a list": lambda content: b"[1]\n"},
    "evaluation/confusion.csv": {
        **EVERYWHERE,
        **{name: OF_TABLES[name] for name in ("fewer cells", "more cells", "no columns")},
        "counts": lambda content: content.replace(b",3", b",-3"),
    },
}
CASES = [
    (file, name, damage)
    for file, damages in FILES.items()
    for name, damage in {**damages, **OF_NUMBERS}.items()
]

PARTITION = {
    "num_clients": 2,
    "num_classes": 2,
    "num_examples": 8,
    "num_central_test": 0,
    "client_size": {"min": 4, "median": 4, "max": 4},
    "clients": [{"client_id": k, "train": 4, "test": 0, "labels": [2, 2]} for k in range(2)],
}


def make_run(folder, num):
    rows = accuracies(0.25, 0.5 + num / 100)
    rows = [{**row, "global/loss": 1.5, "local/accuracy": 0.5} for row in rows]
    clients = [
        {"round": r, "client_id": k, "local/accuracy": 0.5} for r in range(2) for k in range(2)
    ]
    config = {"seed": num, "rounds": 1, "optimized_metric": "global/accuracy"}
    options = {"choices": {"algorithm": "fedavg"}, "num": num, "rows": rows, "clients": clients}
    write_run(folder, config=config, **options)
    (folder / ".hydra" / "overrides.yaml").write_text(f"- seed={num}\n- rounds=1\n")
    (folder / "partition.json").write_text(json.dumps(PARTITION) + "\n")
    (folder / "evaluation").mkdir()
    (folder / "evaluation" / "confusion.csv").write_text(
        "set,target,0,1\nlocal,0,3,1\nlocal,1,0,3\n"
    )
    write_result(folder, Result("finished", config, 0.5))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep of two jobs."""
    folder = tmp_path_factory.mktemp("whole")
    for num in range(2):
        make_run(folder / str(num), num)
    return folder


@pytest.fixture
def damaged(whole, tmp_path):
    """Copy the sweep, and damage a file of job 1; None if that changes nothing."""

    def damaged(file, damage):
        folder = tmp_path / "sweep"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        path = folder / "1" / file
        before = path.read_bytes()
        path.unlink()
        if damage is None:
            path.mkdir()
            return folder
        path.write_bytes(damage(before))
        return None if path.read_bytes() == before else folder

    return damaged


def by_report(folder):
    if report([str(folder)]):
        raise SystemExit(2)
    page = (folder / "report.html").read_text(encoding="utf-8")
    (folder / "report.html").unlink()
    return re.sub("Written.*?</div>", "", page, flags=re.DOTALL)


def by_watch(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["watch", str(folder), "--once"])
        watch.main()


READERS = {
    "report": by_report,
    "watch": by_watch,
    "history": lambda folder: flfast.Run(folder).history.to_csv(),
    "clients": lambda folder: flfast.Run(folder).clients.to_csv(),
    "outcome": lambda folder: flfast.Run(folder).outcome,
}
READS = {
    ".hydra/config.yaml": ("report", "watch"),
    ".hydra/overrides.yaml": ("report", "watch"),
    ".hydra/hydra.yaml": ("report",),
    "metrics.csv": ("report", "watch", "history"),
    "clients.csv": ("report", "clients"),
    "result.json": ("report", "watch", "outcome"),
    "partition.json": ("report",),
    "evaluation/confusion.csv": ("report",),
}
"""Readers that a damage of the file concerns."""


@pytest.fixture(autouse=True)
def _no_screens_of_earlier_commands(monkeypatch):
    """Hydra's handlers of earlier tests write into files that are closed."""
    root = logging.getLogger()
    own = [handler for handler in root.handlers if type(handler).__module__.startswith("_pytest")]
    monkeypatch.setattr(root, "handlers", own)


def result_of(read, folder, capsys, caplog):
    """What a reader returned or printed; None if it refused the folder. And its messages."""
    caplog.clear()
    found, said = None, ""
    try:
        found = read(folder)
        found = capsys.readouterr().out if found is None else found
    except ValueError as error:
        said = str(error)
    except SystemExit as ended:
        assert ended.code == 2
    shown = capsys.readouterr()
    said += shown.err + "".join(f"{record.getMessage()}\n" for record in caplog.records)
    assert "Traceback" not in said
    return found, said


@pytest.mark.parametrize("file", others_slow(FILES, [*FILES][::2]))
def test_readers_read_a_file_of_windows_right(damaged, whole, file, capsys, caplog):
    for damage in HARMLESS.values():
        folder = damaged(file, damage)
        for name in READS[file]:
            found, said = result_of(READERS[name], folder / "1", capsys, caplog)
            right, _ = result_of(READERS[name], whole / "1", capsys, caplog)
            same = found.replace(str(folder), "") == right.replace(str(whole), "")
            assert same and not said, (file, name, said)


@pytest.mark.parametrize("file", others_slow(FILES, [*FILES][::2]))
def test_readers_name_a_damaged_file(damaged, file, capsys, caplog):
    for own, name, damage in CASES:
        folder = damaged(file, damage) if own == file else None
        if folder is None or not concerns(name):
            continue
        for reader in READS[file]:
            _, said = result_of(READERS[reader], folder / "1", capsys, caplog)
            assert file.rpartition("/")[2] in said, (file, name, reader, said)


def concerns(name):
    """Whether a reader needs the damaged value; `report` shows `rounds` as any other setting."""
    return not name.startswith("rounds ")


OF_JOBS = [file for file in FILES if "confusion" not in file]


@pytest.mark.parametrize("file", others_slow(OF_JOBS, [".hydra/config.yaml"]))
def test_a_sweep_reports_its_other_jobs_and_names_the_damaged_one(damaged, file, capsys, caplog):
    for own, name, damage in CASES:
        folder = damaged(file, damage) if own == file else None
        if folder is None or not concerns(name):
            continue
        said = ""
        for read in (write_comparison_quickly, by_report, by_watch):
            found, more = result_of(read, folder, capsys, caplog)
            assert found is not None, (file, name, read, more)
            said += more
        assert f"1/{file}" in said, (file, name, said)
        jobs = {row["job"]: row for row in read_rows(folder / "comparison.csv")}
        assert jobs["0"]["global/accuracy"] == "0.5"


def write_comparison_quickly(folder):
    with pytest.MonkeyPatch.context() as patch:
        for slow in ("draw_comparison", "report_or_warn"):
            patch.setattr(f"flfast.output.callbacks.comparison.{slow}", lambda *_: None)
        write_comparison(folder)


@pytest.mark.parametrize("rounds", ["-1", "0", "1e400", ".nan", "true", "'2'", "[2]", "2.0", ""])
def test_watch_names_a_config_of_no_number_of_rounds(damaged, rounds, capsys, caplog):
    folder = damaged(
        ".hydra/config.yaml",
        lambda content: content.replace(b"rounds: 1", b"rounds: " + rounds.encode()),
    )
    found, said = result_of(by_watch, folder / "1", capsys, caplog)
    assert found is None
    assert "config.yaml: rounds=" in said
