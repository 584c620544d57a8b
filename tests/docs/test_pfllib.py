"""docs/pfllib.md: each option of PFLlib is on the page, and what stands beside it exists."""

import re

import pytest
import yaml
from pages import ROOT, page

import flfast

TEXT = page("pfllib")
GENERAL = """
-go -dev -did -data -ncl -m -lbs -lr -ld -ldg -gr -tc -ls -algo -jr -rjr -nc -pv -t -eg -sfn -ab
-dlg -dlgg -bnpc -nnc -ften -fd -vs -ml -fs -cdr -tsr -ssr -ts -tth
"""
SPECIAL = """
-bt -lam -mu -K -lrp -M -itk -alk -sg -al -pls -tau -fte -dlr -L -nd -glr -hd -se -lf -slr -et -s
-p -mlr -Ts -Te -mo -klw -fsb -ca -cmss
"""


def table(heading):
    """Cells of the rows of the table below a heading."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line[:1] == "|"]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def codes(cell):
    return re.findall(r"`([^`]+)`", cell)


GENERAL_ROWS, MODELS = table("General options"), table("Models")
CHOICES = {"lr_schedule", "sampler", "stop", "devices", "model"}


@pytest.mark.parametrize(
    ("heading", "flags"), [("General options", GENERAL), ("Options of algorithms", SPECIAL)]
)
def test_each_option_is_listed(heading, flags):
    listed = [code for cells in table(heading) for code in codes(cells[0])]
    assert sorted(listed) == sorted(flags.split())


@pytest.mark.slow
def test_the_settings_of_general_options_and_models_exist():
    rows = [codes(cells[1])[0].split() for cells in GENERAL_ROWS + MODELS if codes(cells[1])]
    merged = []
    for row in rows:
        words = [word for word in row if not re.match(r"hydra|seed=.*,", word)]
        if {word.partition("=")[0] for word in words} & CHOICES:
            flfast.compose("data=svhn", *words)
        else:
            merged += words
    flfast.compose("partition=iid", *merged)


def test_the_options_of_algorithms_exist():
    for cells in table("Options of algorithms"):
        if cells[2].startswith(("none", "`optimizer.lr`", "`finetune_epochs`")):
            continue
        name, *keys = codes(cells[2])
        path = ROOT / "conf" / "algorithm" / f"{name}.yaml"
        known = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert keys, name
        assert {key for key in keys if not key.startswith(("-", "optimizer"))} <= set(known), name


def test_the_algorithms_exist():
    names = [code for cells in table("Algorithms") for code in codes(" ".join(cells))]
    assert len(names) == len(set(names)) == 40
    for name in names:
        assert (ROOT / "conf" / "algorithm" / f"{name}.yaml").exists(), name
