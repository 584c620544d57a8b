"""A path of the repository in backticks exists, on every page."""

import os
import re
from fnmatch import fnmatch

import pytest
from pages import PAGES, ROOT, named_files

FOLDERS = (
    *("flfast", "conf", "docs", "tests", "benchmarks", "notebooks", "hydra_plugins"),
    *(".ci", ".github", "examples"),
)
SUFFIXES = {"py", "pyi", "yaml", "yml", "md", "toml", "cpp", "h", "js", "css", "cff", "ipynb"}
CODE = re.compile(r"`([^`\s]+)`")
OF_OTHERS = {
    "main.py": "PFLlib's",
    "benchmarks/results/gpu-*-*": "where benchmarks.gpu writes",
    "config.toml": "Flower's",
    "app/settings.py": "written by flfast.flower",
    "summary.md": "written by benchmarks.gpu",
    ".hydra/config.yaml": "in a run's folder",
    ".hydra/hydra.yaml": "in a run's folder",
    ".hydra/overrides.yaml": "in a run's folder",
    "optimization_results.yaml": "in a search's folder",
}


def entries():
    """Files and folders of the repository, with a slash in front."""
    yield from (f"/{path.name}" for path in ROOT.iterdir())
    for top in FOLDERS:
        for folder, folders, files in os.walk(ROOT / top):
            folders[:] = [name for name in folders if name != "__pycache__"]
            place = folder.removeprefix(str(ROOT))
            yield from (f"{place}/{name}" for name in (*folders, *files))


ENTRIES = [*entries()]


def alternatives(word):
    """`state/{tree,stack}.py` is two paths; NAME in capitals stands for any name."""
    braces = re.search(r"\{([^{}]*)\}", word)
    if braces:
        start, end = word[: braces.start()], word[braces.end() :]
        return [path for name in braces[1].split(",") for path in alternatives(start + name + end)]
    return [re.sub(r"\b[A-Z]{3,}\b(?!\.\w)|\b[A-Z]{3,}(?=\.(py|yaml)\b)", "*", word)]


def is_path(word):
    """Whether a word means a file or a folder of the repository."""
    if not re.fullmatch(r"[\w./*-]+", word) or word in OF_OTHERS:
        return False
    name = word.rstrip("/").rpartition("/")[2]
    return ("." in name and name.rpartition(".")[2] in SUFFIXES) or (
        word.partition("/")[0] in FOLDERS and "/" in word
    )


def missing(text):
    """Paths of a page that are not there. Folders above may be left out: `state/tree.py`."""
    words = (path for word in CODE.findall(text) for path in alternatives(word))
    own = [f"/{path}" for path in named_files(text)]
    return [
        word
        for word in dict.fromkeys(words)
        if is_path(word)
        and not any(fnmatch(path, f"*/{word.rstrip('/')}") for path in (*ENTRIES, *own))
    ]


NOW = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which tells of files of the past


@pytest.mark.parametrize("page", NOW, ids=lambda page: page.name)
def test_paths_in_backticks_exist(page):
    assert missing(page.read_text(encoding="utf-8")) == []


def test_a_path_that_is_not_there_is_found():
    text = "`state/{tree,free}.py` `conf/model/NAME.yaml` `lit/reused_trainer.py` `a/b` `model.pt`"
    assert missing(text) == ["state/free.py", "lit/reused_trainer.py"]
