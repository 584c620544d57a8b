"""The walk through the door: what it reads of README, its folders, and how its steps end."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from benchmarks import door


@pytest.fixture
def walk(tmp_path):
    return door.Door(tmp_path)


def test_it_reads_the_five_commands_and_the_program_of_readme():
    commands = [line.partition("#")[0].split() for line in door.FIVE.splitlines()]
    assert [words[:3] for words in commands] == [["python", "-m", "flfast.train"]] * 5
    compile(door.SNIPPET, "README.md", "exec")
    assert "flfast.run(" in door.SNIPPET


def test_its_folder_has_a_space_and_a_link_in_its_path(walk):
    done = door.ended(walk.start("pwd; pwd -P; echo $XDG_CACHE_HOME"))
    logical, physical, cache = done.text.splitlines()
    assert (done.code, logical) == (0, str(walk.here))
    assert " " in Path(physical).name
    assert Path(physical) == walk.here.resolve() != walk.here
    assert not Path(cache).exists()


def test_a_step_says_whether_it_differs_and_how(walk, capsys):
    walk.command("a file", "touch ../made && echo done", "../made", says="done")
    walk.command("a code", "echo why; exit 3")
    walk.command("a missing file", "echo nothing", "../absent")
    walk.command("a traceback", "echo Traceback")
    walk.step("an error", lambda: str(1 / 0))
    lines = [line for line in capsys.readouterr().out.splitlines() if line[0] != " "]
    assert [re.sub(r" +\d+ s +", ": ", line) for line in lines] == [
        *("ok: a file", "differs: a code", "differs: a missing file"),
        *("differs: a traceback", "differs: an error"),
    ]
    assert walk.failed == ["a code", "a missing file", "a traceback", "an error"]


def test_a_command_has_a_limit_and_its_silence_is_measured(walk):
    hangs = shlex.join(("bash", "-c", "echo waiting; sleep 60 & wait"))
    done = door.ended(walk.start(hangs), limit=1)
    assert (done.code, done.text) == (None, "waiting\n")
    seconds, said = done.silence
    assert 0.5 < seconds < 30
    assert said == "waiting\n"


def test_it_runs_every_night(root):
    jobs = yaml.safe_load((root / ".github/workflows/nightly.yml").read_text("utf-8"))["jobs"]
    assert "python -m benchmarks.door" in [step.get("run") for step in jobs["door"]["steps"]]
