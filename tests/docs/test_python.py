"""The programs of docs/python.md run as they are printed."""

import re
from functools import partial

import flfast

NO_FIGURES = ("callbacks.curves=null", "callbacks.partition_report=null")
QUICK = ("local_epochs=1", "trainer.devices=1", "engine=eager", *NO_FIGURES)


def test_the_programs_of_the_page_run(root, tmp_path, monkeypatch, capsys):
    """In one namespace, one after the other, with a short local training."""
    page = (root / "docs" / "python.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flfast, "run", partial(flfast.run, *QUICK))
    names = {}
    for program in programs:
        exec(program, names)
    assert "unknown key roundss; did you mean rounds?" in capsys.readouterr().out
    assert (tmp_path / "curves.png").exists()
    assert len(names["run"].history) == 4
    assert names["run"].folder == tmp_path / "mine"
