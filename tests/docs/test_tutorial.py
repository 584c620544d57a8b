"""docs/tutorial.md: its commands and programs run, with short local training."""

from functools import partial

import pytest
from pages import commands, named_files, page, programs

import flfast
from flfast import train
from flfast.report import main as report

TEXT = page("tutorial")
NO_FIGURES = ("callbacks.curves=null", "callbacks.partition_report=null")
SHORT = ("local_epochs=1", "batch_size=-1", "trainer.devices=1", "engine=eager", *NO_FIGURES)
FEW = {"rounds=15": "rounds=1", "rounds=60": "rounds=3", "seed=0,1,2": "seed=0"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for path, text in named_files(TEXT).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def few(words):
    """The training in a few rounds."""
    found = [FEW.get(word, word) for word in words]
    rounds = () if any(word.startswith("rounds=") for word in found) else ("rounds=2",)
    return [*found, *rounds, *SHORT]


@pytest.mark.slow  # all commands of the docs compose in test_site.py
def test_the_commands_run(folder, start):
    for _, _, module, *words in commands(TEXT):
        if module == "flfast.train":
            command = start(train.main, *few(words), folder=folder)
        elif module == "flfast.report":
            command = start(partial(report, words), folder=folder)
        else:
            assert [module, *words] == ["pip", "install", ".[notebook]"]
            continue
        code, said = command.end()
        assert code == 0, said
    for place in ("first", "skewed", "async", "compare", "own"):
        assert (folder / place / "report.html").exists()
    assert (folder / "two.html").exists()
    assert (folder / "async" / "events.png").exists()


@pytest.mark.slow
def test_the_programs_run(folder, monkeypatch):
    monkeypatch.setattr(flfast, "run", partial(flfast.run, *SHORT))
    names = {}
    for program in programs(TEXT):
        exec(program, names)
    assert (folder / "wine.png").exists()
    assert names["net"] is not names["run"].model
