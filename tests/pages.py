"""Code on pages of the documentation: programs, files and commands."""

import re
import shlex
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

ROOT = Path(__file__).parents[1]
PAGES = (
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
)
"""Every page of the documentation."""

_BLOCK = re.compile(r"^```(\w*)(?: ([\w./]+))?\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_NEEDS = re.compile(r"^<!-- needs: [^>\n]+ -->\n```.*?^```$", flags=re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(python3?|srun|torchrun) ")


def page_name(path):
    """A page's path from the repository's root, as the name of a test."""
    return path.relative_to(ROOT).as_posix()


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def programs(text):
    """Python blocks without the name of a file, in order."""
    return [code for kind, path, code in _BLOCK.findall(text) if kind == "python" and not path]


def named_files(text):
    """Blocks that name their file, by it."""
    return {path: code for _, path, code in _BLOCK.findall(text) if path}


def runnable(text):
    """The page without the blocks of which a comment above says what they need."""
    return _NEEDS.sub("", text)


def commands(text):
    """Words of each command in blocks of `bash`, or of no language."""
    blocks = [code for kind, _, code in _BLOCK.findall(text) if kind in {"bash", ""}]
    lines = re.sub(r"\\\n(?:\s+|(?=\S))", lambda end: " " * (len(end[0]) > 2), "\n".join(blocks))
    found = (line for line in lines.splitlines() if _COMMAND.match(line))
    return [shlex.split(line, comments=True) for line in found]


def trainings(text):
    """What follows `flfast.train` in a command, for each command that trains."""
    found = []
    for words in commands(text):
        start = next((i for i, word in enumerate(words) if "flfast.train" in word), None)
        if start is not None:
            found.append(words[start + 1 :])
    return found


def first_job(words):
    """Overrides of the first job of a training; words of Hydra and of the shell are left out.

    Raises:
        AssertionError: if a sweep names an option that its group of conf/ does not have.
    """
    overrides = []
    for word in words:
        if word.startswith(("-", "hydra", "$")):
            continue
        (parsed,) = OverridesParser.create().parse_overrides([word])
        if not parsed.is_sweep_override():
            overrides.append(word)
            continue
        key, values = parsed.get_key_element(), list(parsed.sweep_string_iterator())
        group = ROOT / "conf" / key
        for value in values if group.is_dir() else ():
            assert (group / f"{value}.yaml").exists(), f"{key}={value}"
        overrides.append(f"{key}={values[0]}")
    return overrides
