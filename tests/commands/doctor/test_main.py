"""The self-check, for real: a run with the defaults, ranks, kernels; and where some are not."""

import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from processes import Command

from flfast import doctor, train
from flfast.commands.doctor import checks, examination
from flfast.distributed.launcher import other_threads
from flfast.state.native.compiler import missing

CHECKS = [
    *("versions", "bytecode", "gloo", "NCCL", "run folder", "processors", "C++ kernels"),
    *("executor", "default run", "CUDA graphs"),
]


def said(start, *arguments, **options):
    command: Command = start(doctor.main, *arguments, **options)
    code, _ = command.end()
    return code, (command.folder / "stdout").read_text()


@pytest.fixture
def patience(monkeypatch):
    """Time for what is tried here, however busy the machine is; and fewer rounds."""
    monkeypatch.setattr(checks, "_ALL_REDUCE_S", 200)
    monkeypatch.setattr(examination, "_ROUNDS", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("patience")
def test_it_says_what_works_in_plain_lines_and_that_a_run_will_work(start, tmp_path):
    code, text = said(start, folder="here")
    lines = text.splitlines()
    assert code == 0
    assert [line.partition(":")[0] for line in lines[1:-1]] == CHECKS
    assert lines[-1] == "A run with the defaults will work."
    for name in ("gloo", "executor", "run folder", "default run"):
        assert f"{name}: works" in text
    assert f"C++ kernels: {'works' if missing() is None else 'fails'}" in text
    assert "samples/s" in text
    assert not any((tmp_path / "here" / "outputs").glob("*"))  # nothing is left behind


@pytest.mark.slow
@pytest.mark.usefixtures("patience")
def test_without_compiler_and_run_folder_it_says_what_to_do_and_fails(start, tmp_path):
    (tmp_path / "file").write_text("no folder")
    env = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    code, text = said(start, str(tmp_path / "file" / "runs"), env=env)
    assert code == 1
    assert "C++ kernels: fails" in text
    assert "no C++ compiler" in text
    assert "run folder: fails" in text
    assert "hydra.run.dir=FOLDER" in text
    assert text.splitlines()[-1] == "A run with the defaults will not work: run folder."


@pytest.mark.parametrize(
    ("writes", "fix"), [(False, "unset PYTHONDONTWRITEBYTECODE"), (True, "PYTHONPYCACHEPREFIX")]
)
def test_it_says_when_python_compiles_at_each_start(writes, fix, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", not writes)
    works, message = checks.bytecode()
    assert works is False
    assert fix in message
    compiled = Path(cache_from_source(checks.torch.__file__))
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    assert checks.bytecode()[0] is True


def test_ranks_are_forked_while_checks_run(monkeypatch, capsys, tmp_path):
    """Beside a thread, such as that of a spinner, they would be spawned: thirty times as slow."""
    found = []
    check = examination.Check("threads", lambda: (True, f"{found.append(other_threads())}"))
    monkeypatch.setattr(examination, "checks", lambda folder, command: [check])
    before = other_threads()
    assert examination.examine(tmp_path, train.main) == []
    assert found == [before]
    assert capsys.readouterr().out.startswith("threads: works")
