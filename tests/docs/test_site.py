"""The site: the reference has every key of conf/, links between pages exist, commands compose."""

import re
from functools import cache
from pathlib import PurePosixPath

import pytest
from omegaconf import DictConfig, OmegaConf
from pages import PAGES, ROOT, first_job, page_name, trainings

import flfast
from docs import reference

REFERENCE = cache(reference.pages)
CONF = ROOT / "conf"
FILES = sorted(path.relative_to(CONF).as_posix() for path in CONF.rglob("*.yaml"))
LINK = re.compile(r"\]\(([^)\s]+)\)")
HIDDEN = {"_target_", "_partial_", "defaults"}


def section(file):
    """What the reference says about the option of a file of conf/."""
    group, _, option = file.removesuffix(".yaml").rpartition("/")
    text = REFERENCE()[f"reference/{group.replace('/', '-') or option}.md"]
    option = option if group else ""
    return text.partition(f"\n## {option}\n")[2].partition("\n## ")[0] if option else text


def leaves(node, prefix=""):
    for key, value in node.items_ex(resolve=False):
        if isinstance(value, DictConfig) and len(value):
            yield from leaves(value, f"{prefix}{key}.")
        elif key != "_partial_" and (prefix or key not in HIDDEN):
            yield f"{prefix}{key}"


@pytest.mark.slow
def test_the_reference_has_every_option_and_key():
    for file in FILES:
        told = section(file)
        assert told, file
        group = PurePosixPath(file).parent.as_posix().replace("/", ".")
        is_global = "@package _global_" in (CONF / file).read_text() or file == "config.yaml"
        node = OmegaConf.load(CONF / file)
        for key in leaves(node):
            assert f"| `{key if is_global else f'{group}.{key}'}` | " in told, file
        target = node.get("_target_", "???")
        assert target == "???" or f"Calls `{target}`." in told, file


def test_the_reference_has_defaults_comments_and_docstrings():
    told = section("algorithm/fedprox.yaml")
    assert "| `algorithm.mu` | `0.1` | strength of the proximal term, >= 0;" in told
    assert "https://arxiv.org/abs/1812.06127" in told
    assert "samples \\| uniform" in told
    assert "| `checkpoint.keep_last` | `2` | number of newest" in section("config.yaml")
    phases = "`[{from: 11, overrides: [batch_size=50]}, "
    assert f"| `schedule.phases` | {phases}" in section("schedule/growing_batch.yaml")
    told = section("aggregation/median.yaml")
    assert (
        "It needs uploads of one shape; clients that send something; several uploads in a step."
        in told
    )
    assert "uploads is refused with it: it reads single uploads." in told


def test_a_docstring_becomes_markdown():
    text = "Sum * of.\n\n    a < b * c\n\nArgs:\n    x: one [N],\n        or `*two`.\n\nAfter."
    assert reference.markdown(text).splitlines() == [
        *("Sum \\* of.", "", "    a < b * c", "", "**Args**", ""),
        *("- `x`: one \\[N\\],", "  or `*two`.", "", "After."),
    ]


def test_the_navigation_has_every_page():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": ([\w/-]+\.md)$", text, flags=re.MULTILINE))
    places = {path.relative_to(ROOT / "docs").as_posix() for path in PAGES[:-3]}
    assert listed == places | {"index.md", "contributing.md", "changelog.md"}


def anchors(path):
    """Anchors of the headings of a page, as GitHub makes them."""
    lines = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    names = re.findall(r"^#+ (.+)$", lines, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in names}


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_links_lead_to_files_and_headings_that_exist(path):
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        place, _, anchor = link.partition("#")
        if ":" in place:
            continue
        target = path.parent / place if place else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_links_to_options_lead_to_their_pages_of_the_site():
    pages = {f"conf/{file}": reference.page_of(f"conf/{file}") for file in FILES}
    for file, place in pages.items():
        page, _, option = place.partition("#")
        assert not option or f"\n## {option}\n" in REFERENCE()[page], file
    groups = {file.rpartition("/")[0] for file in FILES} - {""}
    assert {reference.page_of(f"conf/{group}") for group in groups} < REFERENCE().keys()
    assert pages["conf/config.yaml"] == "reference/config.md"
    assert pages["conf/data/copies.yaml"] == "reference/data.md#copies"
    assert [reference.page_of(path) for path in ("conf", "flfast/conf.py", "docs/data.md")] == [
        None
    ] * 3


COMMANDS = {
    tuple(words)
    for path in PAGES
    for words in trainings(path.read_text(encoding="utf-8"))
    if not {"--config-dir", "--help"} & set(words)
    and not any(word.startswith("hparams_search") for word in words)  # tests/sweeps: needs Optuna
    and not any("my_project." in word for word in words)  # is a user's
}


@pytest.mark.slow  # `test_commands.py` runs some
@pytest.mark.parametrize("first", range(12))
def test_commands_that_train_compose(tmp_path, monkeypatch, first):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "FOLDER" / "model.pt").touch()
    (tmp_path / "FOLDER" / "clients.csv").write_text("round,client_id\n1,0\n", encoding="utf-8")
    (tmp_path / "FOLDER" / "partition.npz").touch()
    for words in sorted(COMMANDS)[first::12]:
        flfast.compose(*first_job(words))
