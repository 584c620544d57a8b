"""docs/algorithms.md: its table is up to date, and what one is told to write runs."""

import re
import subprocess
import sys

import pytest
from tables import rows

from docs.algorithms import PAGE, page, paper
from flfast import train

TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL))


def test_the_table_is_up_to_date():
    assert page() == TEXT, "run python -m docs.algorithms"


def test_a_docstring_is_cited_by_its_first_paper():
    assert (
        paper("A.\n\nLi, Wu: On X. ICML 2019. https://x.org") == "[Li et al. 2019](https://x.org)"
    )
    assert paper("Local training.\n\nThe floor of every comparison: what one reaches alone.") == ""


def test_ones_own_algorithm_is_shorter_than_thirty_lines_and_clean(root):
    text = BLOCKS["flfast/algorithms/fedexp.py"]
    assert text.count("\n") < 30
    for command in (("check", "--no-cache"), ("format", "--check")):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename"]
        ruff += ["flfast/algorithms/fedexp.py", "-"]
        found = subprocess.run(
            ruff, input=text, capture_output=True, text=True, check=False, cwd=root
        )
        assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_ones_own_algorithm_runs(start, tmp_path):
    for path, text in BLOCKS.items():
        place = tmp_path / "own" / path.replace("flfast/algorithms", "mine")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text.replace("flfast.algorithms.fedexp", "mine.fedexp"))
    words = ("--config-dir", "conf", "algorithm=fedexp", "rounds=3", "callbacks=none")
    words += ("data=synthetic", "data.num_examples=400", "partition=iid", "engine=eager")
    words += ("trainer.devices=1", "hydra.run.dir=run")
    command = start(train.main, *words, folder="own")
    code, said = command.end()
    assert code == 0, said
    table = rows(command.folder / "run")
    assert float(table[-1]["train/loss"]) < float(table[1]["train/loss"])
    assert int(table[1]["comm/up_bytes"]) == int(table[1]["comm/down_bytes"]) + 10 * 4
