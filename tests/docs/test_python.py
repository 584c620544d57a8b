"""The programs of docs/python.md and of other pages run as they are printed."""

import re
from functools import partial

import pytest

import flfast

NO_FIGURES = ("callbacks.curves=null", "callbacks.partition_report=null")
QUICK = ("local_epochs=1", "trainer.devices=1", "engine=eager", *NO_FIGURES)


def printed(page):
    """The page's programs."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow  # those of the tutorial run in every test
def test_the_programs_of_the_page_run(root, tmp_path, monkeypatch, capsys):
    """In one namespace, one after the other, with a short local training."""
    programs = printed(root / "docs" / "python.md")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flfast, "run", partial(flfast.run, *QUICK))
    names = {}
    for program in programs:
        exec(program, names)
    assert "unknown key roundss; did you mean rounds?" in capsys.readouterr().out
    assert (tmp_path / "curves.png").exists()
    assert len(names["run"].history) == 4
    assert names["run"].folder == tmp_path / "mine"
    (regression,) = printed(root / "docs" / "tasks.md")
    exec(regression, names)
    assert names["run"].history["val/r2"].iloc[-1] > 0


@pytest.mark.slow
def test_the_programs_of_other_pages_run(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flfast, "run", partial(flfast.run, *QUICK))
    names = {}
    (shops,) = printed(root / "docs" / "forecasting.md")
    exec(shops, names)
    assert names["run"].history["local/mase"].iloc[-1] < 1.1
    lightning = {}
    for program in printed(root / "docs" / "lightning.md"):
        exec(program, lightning)
    assert lightning["fused"].history["val/acc"].iloc[-1] > 0.2
    assert lightning["gan"].history["train/critic"].iloc[-1] < 1.4
    contrast = lightning["pairs"].history["train/contrast"]
    assert contrast.iloc[-1] < contrast.iloc[1]
    (simclr,) = printed(root / "docs" / "scope.md")
    exec(simclr, names)
    assert names["probe"].history["global/accuracy"].iloc[-1] > 0.4
