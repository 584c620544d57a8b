import json
from pathlib import Path

import campaign
import pytest
from hydra._internal.utils import create_config_search_path

from benchmarks import gpu
from benchmarks.checkouts import HERE
from benchmarks.contenders import Setting, flfast_command, parse
from benchmarks.gpu import main, run_part
from benchmarks.gpu_parts import PARTS, Task, published, timed
from benchmarks.gpu_published import PUBLISHED
from benchmarks.gpu_summary import page
from benchmarks.machine import facts
from benchmarks.processes import ContenderError
from flfast.config.check import check
from flfast.config.composition import CONF, compose, without_hydra

FINDING = """
import json, sys, time
found = {"failures": FAILURES, "notes": ["a fact"], "workloads": []}
open(sys.argv[1], "w").write(json.dumps(found))
print("at most", sys.argv[2])
"""


def part(*failures, end=""):
    return ["-c", FINDING.replace("FAILURES", str([*failures])) + end, "{state}", "{seconds}"]


def test_all_parts_have_time_in_25_minutes():
    assert sum(part.seconds for part in PARTS.values()) <= 25 * 60


@pytest.mark.slow
def test_published_settings_can_be_run():
    folders = create_config_search_path(CONF)
    folders.prepend("benchmarks", f"file://{HERE.conf}")
    for entry in PUBLISHED:
        for name in entry.seconds:
            command = flfast_command(parse(name), entry.workload, Setting("cpu", 1), Path())
            check(without_hydra(compose([*command[4:], "logger=none"], sources=folders)))


def test_published_seconds_stand_beside_ours(task, monkeypatch):
    rounds = [{"train_s": seconds, "eval_s": 1.0} for seconds in (9.0, 2.0, 4.0)]
    monkeypatch.setattr("benchmarks.gpu_parts.measure", lambda *_: {"rounds": rounds})
    published(task)
    result = {"options": {"device": "cpu"}, "date": "", "machine": facts()}
    part = {**task.found, "status": "passed", "seconds": 1.0, "log": ""}
    row = next(
        line
        for line in page({**result, "parts": {"published": part}}).splitlines()
        if "scaffold" in line
    )
    assert "| fused:scaffold+model.norm=group+" in row
    assert "| 4 | 1 | 0 | 20.09 | FL-Simulator's README, one V100 |" in row


@pytest.mark.slow
def test_a_part_passes_fails_crashes_or_takes_too_long():
    passed = run_part(part(), 30)
    assert (passed["status"], passed["notes"]) == ("passed", ["a fact"])
    assert passed["log"] == "at most 30.0\n"
    assert run_part(part("a test"), 30)["status"] == "failed"
    crashed = run_part(part(end="raise OSError('no device')"), 30)
    assert crashed["status"] == "crashed"
    assert "no device" in crashed["log"]
    late = run_part(part(end="sys.stdout.flush()\ntime.sleep(60)"), 2)
    assert late["status"] == "timed out"
    assert late["seconds"] < 30
    assert late["notes"] == ["a fact"]  # what it found before is kept


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The command with parts that do nothing: exit code, and the folder."""

    def run(*options, failing=()):
        def inside(name, *_):
            return part("a reason") if name in failing else part()

        monkeypatch.setattr(gpu, "_inside", inside)
        monkeypatch.setattr(
            "sys.argv", ["gpu", "--device", "cpu", "--out", str(tmp_path), *options]
        )
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code), tmp_path

    return run


def test_one_failure_does_not_stop_the_others(run):
    code, folder = run(failing=["tests"])
    assert code == 1
    page = (folder / "summary.md").read_text()
    assert "| tests | **failed** |" in page
    assert "- failed: a reason" in page
    assert page.count("**passed**") == len(PARTS) - 1
    assert len([*folder.rglob("*")]) <= 8
    assert "===== strategies =====\nat most" in (folder / "logs.txt").read_text()


def test_a_part_that_is_repeated_keeps_the_others(run):
    run("--parts", "tests", "stacks", failing=["tests"])
    code, folder = run("--parts", "tests")
    assert code == 0
    parts = json.loads((folder / "results.json").read_text())["parts"]
    assert {name: part["status"] for name, part in parts.items()} == {
        "tests": "passed",
        "stacks": "passed",
    }


@pytest.fixture
def task(tmp_path):
    return Task("cpu", quick=True, limit_s=100, folder=tmp_path, state=tmp_path / "state.json")


@pytest.fixture
def measured(monkeypatch):
    """Losses of contenders by name; an error is raised."""
    losses = {}

    def measure(contender, *_):
        loss = losses[contender.name]
        if isinstance(loss, Exception):
            raise loss
        return {"loss": loss, "rounds": [], "steps": 1}

    monkeypatch.setattr("benchmarks.gpu_parts.measure", measure)
    monkeypatch.setattr("benchmarks.floors.floor", lambda *_: {})
    return losses


def test_other_numbers_are_a_failure(task, measured):
    measured |= {"eager": 2.0, "fused": 2.0001, "eager:scaffold": 3.0, "fused:scaffold": 3.1}
    timed(task, "W3", [*measured], same=True)
    (note,), (failure,) = task.found["notes"], task.found["failures"]
    assert note == "W3: the same numbers; loss of eager 2, fused 2.0001"
    assert failure == "W3: other numbers; loss of eager:scaffold 3, fused:scaffold 3.1"
    measured |= {"fused": float("nan")}
    timed(task, "W3", ["eager", "fused"], same=True)
    assert "fused nan" in task.found["failures"][-1]


def test_a_contender_that_fails_does_not_stop_the_others(task, measured):
    measured |= {"eager": ContenderError("ended with 1:\nout of memory"), "fused": 2.0}
    timed(task, "W3", ["eager", "fused"])
    assert task.found["failures"] == ["W3, eager: ContenderError: out of memory"]
    saved = json.loads(task.state.read_text())["workloads"]
    assert [*saved[0]["measured"]] == ["fused"]


@pytest.mark.usefixtures("measured")
def test_a_part_without_time_says_what_it_left_out(task):
    task.limit_s = 1
    timed(task, "W3", ["fused"])
    assert task.found["failures"] == ["W3: no time left for fused"]


@campaign.only_then
@pytest.mark.timeout(900)
def test_a_part_runs_on_the_cpu(monkeypatch, tmp_path):
    options = ["--device", "cpu", "--parts", "graphs-off", "--minutes", "30"]
    monkeypatch.setattr("sys.argv", ["gpu", *options, "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        main()
    page = (tmp_path / "summary.md").read_text()
    assert stop.value.code is False, page
    assert "| fused+graphs=off |" in page
    assert "the same numbers" in page
