"""Pages of algorithms: tables are up to date, and what one is told to write runs."""

import re
import subprocess
import sys

import pytest
import yaml
from hydra import initialize_config_dir
from pages import page as page_text
from sampling import others_slow
from tables import rows

from docs.algorithms import PAGE, page, paper, table

TEXT = PAGE.read_text(encoding="utf-8")
OWN = PAGE.with_name("own-algorithms.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```$", OWN, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.slow
def test_the_tables_are_up_to_date():
    assert page() == TEXT, "run python -m docs.algorithms"


def test_every_algorithm_has_a_row_in_the_table_of_its_family(root):
    families = {
        path.stem: path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# family: ")
        for path in (root / "conf" / "algorithm").glob("*.yaml")
    }
    tables = re.findall(r"<!-- table (\w+) -->(.*?)<!-- /table -->", TEXT, flags=re.DOTALL)
    listed = {
        name: family
        for family, rows in tables
        for name in re.findall(r"^\| `(\w+)`", rows, flags=re.MULTILINE)
        if name in families
    }
    assert listed == families
    with initialize_config_dir(str(root / "conf"), version_base="1.3"):
        for row in table(["fedavg", "ditto", "mime"]).splitlines():
            assert f"\n{row}\n" in TEXT, "run python -m docs.algorithms"


def told_defaults():
    """Settings in the table of defaults, `mu: 0.1`, by the letters of an algorithm's name."""
    part = (
        page_text("decisions/algorithms")
        .partition("\n## Defaults of algorithms")[2]
        .partition("\n## ")[0]
    )
    told = {}
    for names, settings in re.findall(r"^\| ([^|]+) \| (`[^|]+) \|", part, flags=re.MULTILINE):
        for name in names.split(", "):
            found = yaml.safe_load(f"{{{', '.join(re.findall(r'`([^`]+)`', settings))}}}")
            told.setdefault(re.sub(r"[^a-z]", "", name.lower()), {}).update(found)
    return told


def test_every_number_of_an_algorithm_has_its_source_in_the_table_of_defaults(root):
    told = told_defaults()
    for path in sorted((root / "conf" / "algorithm").glob("*.yaml")):
        options = yaml.safe_load(path.read_text(encoding="utf-8"))
        numbers = {key: value for key, value in options.items() if isinstance(value, int | float)}
        numbers.pop("_partial_")
        rows = told.get(re.sub(r"[^a-z]", "", path.stem), {})
        assert {key: rows.get(key) for key in numbers} == numbers, path.stem
        assert rows.keys() <= options.keys(), path.stem


def test_a_docstring_is_cited_by_its_first_paper():
    assert (
        paper("A.\n\nLi, Wu: On X. ICML 2019. https://x.org") == "[Li et al. 2019](https://x.org)"
    )
    assert paper("Local training.\n\nThe floor of every comparison: what one reaches alone.") == ""


@pytest.mark.parametrize("path", [path for path in BLOCKS if path.endswith(".py")])
def test_ones_own_algorithm_is_shorter_than_forty_lines_and_clean(root, path):
    text = BLOCKS[path]
    assert text.count("\n") < 40
    for command in (("check", "--no-cache"), ("format", "--check")):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", path, "-"]
        found = subprocess.run(
            ruff, input=text, capture_output=True, text=True, check=False, cwd=root
        )
        assert found.returncode == 0, found.stdout + found.stderr


NAMES = ["extrapolate", "fair", "nearest", "pairs", "mixed", "two_heads", "careful"]
MORE_BYTES = {**dict.fromkeys(NAMES[1:-1], 0), "extrapolate": 10 * 4}


@pytest.mark.parametrize("name", others_slow(NAMES, NAMES[:1]))
def test_ones_own_algorithm_runs(flfast_run, tmp_path, monkeypatch, name):
    own = f"mine_{name}"
    for path in (f"flfast/zoo/algorithms/{name}.py", f"conf/algorithm/{name}.yaml"):
        place = tmp_path / "own" / path.replace("flfast/zoo/algorithms", own)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(BLOCKS[path].replace(f"flfast.zoo.algorithms.{name}", f"{own}.{name}"))
    monkeypatch.syspath_prepend(tmp_path / "own")
    words = ("--config-dir", str(tmp_path / "own" / "conf"), f"algorithm={name}", "rounds=3")
    words += ("data=synthetic", "data.num_examples=400", "partition=iid", "engine=eager")
    found = rows(flfast_run(*words, "local_epochs=1", "callbacks=none"))
    assert float(found[-1]["train/loss"]) < float(found[1]["train/loss"])
    up, down = (int(found[1][f"comm/{way}_bytes"]) for way in ("up", "down"))
    if name in MORE_BYTES:
        assert up == down + MORE_BYTES[name]
    else:  # three broadcasts; an upload of weights, and two of a number of eight bytes
        assert up == down // 3 + 10 * 2 * 8
