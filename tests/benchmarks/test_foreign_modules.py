"""Modules of other packages: the row of a case, the table, and that it runs every night."""

import sys
from pathlib import Path

import pytest
import yaml

from benchmarks import foreign_cases, foreign_modules
from benchmarks.foreign_cases import CASES, Case


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(foreign_cases, "ALGORITHMS", ("scaffold", "fedprox"))
    monkeypatch.setattr(foreign_cases, "WORDS", ("rounds=1", *foreign_cases.WORDS[1:]))


@pytest.mark.usefixtures("here")
def test_a_case_says_what_differs():
    row = foreign_cases.run(CASES["lightning: DemoModel"])
    assert (row["engine"], row["equal"], row["lines"]) == ("fused", "yes", 0)
    assert row["algorithms"] == ["fedprox"]
    assert "needs local steps of SGD" in row["refused"]
    assert row["differs"] == ["only fedprox ran"]


@pytest.mark.usefixtures("here")
def test_a_case_that_clients_cannot_have_is_refused():
    assert foreign_cases.run(CASES["lightning: SequenceSampler"])["differs"] == []
    odd = Case(foreign_cases.lstm, refused="another reason")
    assert len(foreign_cases.run(odd)["differs"]) == 2


def test_a_process_that_fails_is_a_row():
    row = foreign_modules.row_of("no such case", Path(sys.executable))
    assert "invalid choice" in row["differs"][0]
    assert foreign_modules.line_of("x", row).startswith("| x |")


def test_it_runs_every_night(root):
    jobs = yaml.safe_load((root / ".github/workflows/nightly.yml").read_text("utf-8"))["jobs"]
    steps = [step.get("run") for step in jobs["foreign"]["steps"]]
    assert "uv run python -m benchmarks.foreign_modules" in steps
