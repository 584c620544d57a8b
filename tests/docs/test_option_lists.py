"""Lists of options and tables of defaults on the pages say what conf/ says."""

import re

import pytest
import yaml
from pages import ROOT, page

CONF = ROOT / "conf"
GROUPS = {
    folder.name: {path.stem for path in folder.glob("*.yaml")}
    for folder in CONF.iterdir()
    if folder.is_dir()
}
FIXED = {"trainer", "hydra"}  # groups with one option, which nobody chooses


def tables(text):
    """Rows of each table as cells, the header first."""
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        yield [[cell.strip() for cell in cells] for cells in lines if "---" not in cells[0]]


def names(cell):
    return re.findall(r"`(\w+)`", cell)


def listed_groups():
    """Options by group in the first table of docs/options.md, where rows may go on below."""
    groups, group = {}, ""
    for first, options in next(tables(page("options")))[1:]:
        group = first.strip("`") or group
        groups.setdefault(group, set()).update(names(options))
    return groups


def test_the_list_of_groups_has_every_option():
    listed = listed_groups()
    assert set(GROUPS) - set(listed) == FIXED
    del listed["task"]  # a key, not a group
    assert listed.pop("algorithm") == set()  # a link to tables that have their own test
    assert listed == {group: GROUPS[group] for group in listed}


PAGES = [
    *(("adapters", "adapter"), ("algorithms", "selection"), ("audits", "audit")),
    *(("compression", "compression"), ("devices", "work"), ("engines", "engine")),
    *(("loggers", "logger"), ("operations", "sampler"), ("operations", "strategy")),
    *(("privacy", "privacy"), ("robustness", "aggregation"), ("robustness", "attack")),
    *(("shifts", "shift"), ("topologies", "topology")),
]


@pytest.mark.parametrize(("name", "group"), PAGES)
def test_a_page_about_a_group_has_each_of_its_options_in_a_table(name, group):
    rows = [row for table in tables(page(name)) for row in table[1:]]
    assert {option for row in rows for option in names(row[0])} >= GROUPS[group] - {"none"}


def test_the_page_about_data_names_every_source():
    found = set(re.findall(r"`(?:data=)?(\w+)[` ]", page("data")))
    assert found >= GROUPS["data"], GROUPS["data"] - found


DEFAULTS = {
    "asynchrony": [("pace/sync",), ("pace/async", "pace/buffered")],
    "data": [("data/table",)],
    "devices": [("devices/ideal",), ("devices/lognormal",), ("devices/tiers",)],
    "families": [("model/family",)],
    "forecasting": [("data/series",)],
    "segmentation": [("model/unet",)],
    "topologies": [("topology/tiers",), ("topology/graph",)],
}
NO_DEFAULT = {"none", "by type", "all others"}


def told_defaults(row, column, options):
    """Keys of a row that the options have, with the defaults that the row says."""
    keys = [key.rpartition(".")[2] for key in re.findall(r"`([\w.]+)`", row[0])]
    keys = [key for key in keys if key in options]
    cell = row[column].partition(":")[0].replace("`", "")
    values = cell.split(", ") if len(keys) > 1 and ", " in cell else [cell] * len(keys)
    return {
        key: None if value in NO_DEFAULT else yaml.safe_load(value)
        for key, value in zip(keys, values, strict=True)
    }


@pytest.mark.parametrize("name", DEFAULTS)
def test_tables_of_defaults_are_true(name):
    found = [table for table in tables(page(name)) if "default" in table[0]]
    for table, files in zip(found, DEFAULTS[name], strict=True):
        options = {}
        for file in files:
            options |= yaml.safe_load((CONF / f"{file}.yaml").read_text(encoding="utf-8"))
        told = {}
        for row in table[1:]:
            told |= told_defaults(row, table[0].index("default"), options)
        assert told == {key: options[key] for key in told}
        assert told
