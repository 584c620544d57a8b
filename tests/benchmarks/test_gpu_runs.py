import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from hydra._internal.utils import create_config_search_path

from benchmarks.checkouts import HERE, ROOT
from benchmarks.gpu import checks, cures
from benchmarks.gpu.forks import in_a_fork
from benchmarks.gpu.job import Job
from benchmarks.gpu.jobs import JOBS
from benchmarks.gpu.page import line, other_numbers, page
from benchmarks.gpu.patching import put
from benchmarks.gpu.published import PUBLISHED
from benchmarks.machine import facts
from flfast.config.check import check
from flfast.config.composition import CONF, compose, without_hydra


def needs_gpu(path):
    return re.search(r"mark\.gpu\b", path.read_text(encoding="utf-8"))


def job(name, *, same=""):
    return Job(name, 1, lambda *_: None, same=same)


def test_names_of_jobs_begin_in_no_two_ways():
    names = [job.name for job in JOBS]
    assert len({*names}) == len(names)
    assert not [name for name in names if "|" in name]


def test_files_with_tests_that_need_a_gpu_are_all_there():
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if needs_gpu(path)]
    assert {*checks.TESTS} >= {str(path.relative_to(ROOT)) for path in files}
    assert all((ROOT / name).is_file() for name in checks.TESTS)


def test_what_decides_fits_into_the_first_call():
    names = [job.name for job in JOBS]
    until = JOBS[: names.index("W1 plain") + 1]
    assert sum(job.limit_s for job in until) <= 360  # limits; half of it is expected


@pytest.mark.slow
def test_published_settings_can_be_run():
    folders = create_config_search_path(CONF)
    folders.prepend("benchmarks", f"file://{HERE.conf}")
    for entry in PUBLISHED:
        words = [*entry.workload.flfast_overrides(device="cpu", rounds=1), *entry.words]
        check(without_hydra(compose([*words, "logger=none"], sources=folders)))


def test_published_seconds_stand_beside_ours():
    found = {"train_s": 4.0, "eval_s": 1.0, "seconds": 9.0, "status": "passed"}
    results = {"device": "cpu", "date": "", "machine": facts()}
    text = page({**results, "jobs": {"published T6 scaffold": found}}, JOBS)
    row = next(row for row in text.splitlines() if "algorithm=scaffold" in row)
    assert row.endswith("| 4 | 1 | 2 | 20.09 | FL-Simulator's README, one V100 |")


def fill(found, **values):
    found |= values


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (partial(fill, loss=2.0), {"status": "passed", "loss": 2.0}),
        (lambda found: fill(found, a=1) or {}["key"], {"a": 1, "error": "KeyError: 'key'"}),
        (lambda found: fill(found, a=1) or sys.exit(3), {"a": 1, "error": "SystemExit: 3"}),
        (lambda found: os.kill(os.getpid(), signal.SIGKILL), {"error": "died: exit code -9"}),
    ],
    ids=["passes", "raises", "exits", "dies"],
)
def test_what_a_job_found_is_kept(run, expected):
    found, _ = in_a_fork(run, 30)
    assert expected.items() <= found.items()
    assert (found.get("status") == "passed") == ("error" not in expected)
    assert ("error" in found) == ("error" in expected)


def hang(found):
    fill(found, before="asleep")
    process = subprocess.Popen(["sleep", "60"])
    fill(found, child=process.pid)
    os.write(1, b"it says so")
    time.sleep(60)


def test_a_job_that_does_not_end_is_stopped_with_all_that_it_started():
    found, said = in_a_fork(hang, 0.5)
    assert found["error"] == "not done after 0 s"
    assert found["before"] == "asleep"
    assert "it says so" in said
    assert found["seconds"] < 30
    with pytest.raises(ProcessLookupError):
        while Path(f"/proc/{found['child']}/stat").read_text().split()[2] != "Z":
            os.kill(found["child"], 0)
        raise ProcessLookupError  # it has ended, and nobody has asked


def test_other_numbers_are_named():
    jobs = [job("a", same="W"), job("b", same="W"), job("c", same="W"), job("d")]
    losses = {"a": 2.0, "b": 2.001, "c": 2.0, "d": 9.0}
    found = {name: {"loss": loss} for name, loss in losses.items()}
    assert other_numbers(found, jobs) == []
    found["b"]["loss"] = 2.1
    assert other_numbers(found, jobs) == ["a 2, b 2.1, c 2"]
    found["b"]["loss"] = float("nan")
    assert other_numbers(found, jobs) == ["a 2, b nan, c 2"]
    del found["b"]["loss"]  # it did not come so far
    assert other_numbers(found, jobs) == []


def test_a_failure_says_why_in_its_line():
    found = {"seconds": 3.0, "error": "RuntimeError: out of memory", "train_s": 0.5}
    assert line("W3", found) == "W3 · failed · 3 · 0.5 · RuntimeError: out of memory"


def test_what_a_cure_changes_is_there():
    found, said = in_a_fork(lambda _: cures.no_recordings(), 60)
    assert found["status"] == "passed", said


def test_a_patch_of_what_is_gone_is_refused():
    with pytest.raises(AttributeError, match="gone"):
        put(cures, "no_such_thing", None)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_runs_jobs_and_keeps_those_of_an_earlier_one(tmp_path):
    def command(*words):
        options = ["--device", "cpu", "--out", str(tmp_path), "--only", *words]
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu", *options],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip

    first = command("W3", "W3 plain")
    assert first.returncode == 0, first.stdout + first.stderr
    second = command("W3 eager")
    assert second.returncode == 0, second.stdout + second.stderr
    jobs = json.loads((tmp_path / "results.json").read_text())["jobs"]
    assert [*jobs] == ["W3", "W3 plain", "W3 eager"]
    assert all(job["status"] == "passed" and job["train_s"] > 0 for job in jobs.values())
    assert abs(jobs["W3 eager"]["loss"] - jobs["W3"]["loss"]) < 2e-3
    assert "===== W3 eager" in (tmp_path / "logs.txt").read_text()
    wrong = command("W3", "--after", "W99")
    assert wrong.returncode == 1
    assert "--after W99: no such job; allowed: costs, W3, " in wrong.stderr
    wrong = command("W99")
    assert wrong.returncode == 1
    assert "--only W99: no such job" in wrong.stderr
