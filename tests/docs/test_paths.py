"""A path of the repository in backticks exists, on every page and in every file of code.

Pages write it from the root of the repository; comments may leave out folders above.
"""

import os
import re
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import pytest
from pages import PAGES, ROOT, named_files, page, page_name

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
    "hydra.yaml": "in a run's folder",
    "configs/paths/default.yaml": "in a project of lightning-hydra-template's shape",
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


STREETS = {path.name for path in (ROOT / "flfast").iterdir() if path.is_dir()}


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
    top, _, below = word.partition("/")
    return (
        ("." in name and name.rpartition(".")[2] in SUFFIXES)
        or (top in FOLDERS and "/" in word)
        or (top in STREETS and below.endswith("/"))
    )


def missing(text, above="*/"):
    """Paths of a text that are not there.

    Args:
        text: a page, or a file of code.
        above: what may stand before a path: any folders, or only "/", the repository's root.
    """
    words = (path for word in CODE.findall(text) for path in alternatives(word))
    own = [f"/{path}" for path in named_files(text)]
    return [
        word
        for word in dict.fromkeys(words)
        if is_path(word)
        and not any(fnmatch(path, f"{above}{word.rstrip('/')}") for path in (*ENTRIES, *own))
    ]


NOW = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which tells of files of the past


@pytest.mark.parametrize("page", NOW, ids=page_name)
def test_paths_of_pages_exist_and_begin_at_the_root(page):
    assert missing(page.read_text(encoding="utf-8"), above="/") == []


TEXTS = {".py", ".pyi", ".yaml", ".yml", ".cpp", ".h", ".ipynb", ""}  # "": the scripts of .ci/
THIS = f"/{Path(__file__).relative_to(ROOT).as_posix()}"


def test_paths_in_comments_and_docstrings_exist():
    files = [place for place in ENTRIES if PurePosixPath(place).suffix in TEXTS and place != THIS]
    texts = {place: ROOT / place[1:] for place in files if (ROOT / place[1:]).is_file()}
    found = {place: missing(path.read_text(encoding="utf-8")) for place, path in texts.items()}
    assert {place: words for place, words in found.items() if words} == {}


IN_A_FILE = re.compile(r"`([a-zA-Z_][\w.]*)(?:\(\))?`\s+(?:(?:in|of)\s+|\()`([\w./]+\.py)`")


def misplaced(text):
    """Names that a page says are in a file, but which that file does not have."""
    for name, path in IN_A_FILE.findall(text):
        places = [ROOT / place[1:] for place in ENTRIES if place.endswith(f"/{path}")]
        word = re.compile(rf"\b{name.rpartition('.')[2]}\b")
        if not any(word.search(place.read_text(encoding="utf-8")) for place in places):
            yield f"{name} in {path}"


@pytest.mark.parametrize("page", NOW, ids=page_name)
def test_names_are_in_the_files_that_a_page_names(page):
    assert [*misplaced(page.read_text(encoding="utf-8"))] == []


def test_a_name_that_is_elsewhere_is_found():
    text = "`micro_auc` (`engines/evaluation/metrics.py`), `micro_auc` in `tasks/task_type.py`"
    assert [*misplaced(text)] == ["micro_auc in engines/evaluation/metrics.py"]


def test_the_place_of_the_auc_is_said_with_a_name():
    """A file alone cannot be compared with what is there, and was another one three times."""
    (place,) = re.findall(r"AUC by client is our own\*\* (.*)", page("decisions/tasks"))
    assert IN_A_FILE.findall(place)


def test_a_path_that_is_not_there_is_found():
    text = "`state/{tree,free}.py` `conf/model/NAME.yaml` `lit/reused_trainer.py` `a/b` `model.pt`"
    assert missing(text) == ["state/free.py", "lit/reused_trainer.py"]
    text = "`flfast/state/tree.py` `state/stack.py` `state/native/` `state/`"
    assert missing(text, above="/") == ["state/stack.py", "state/native/"]
