"""Code on pages of the documentation: programs, files and commands."""

import re
import shlex
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w*)(?: ([\w./]+))?\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def programs(text):
    """Python blocks without the name of a file, in order."""
    return [code for kind, path, code in _BLOCK.findall(text) if kind == "python" and not path]


def named_files(text):
    """Blocks that name their file, by it."""
    return {path: code for _, path, code in _BLOCK.findall(text) if path}


def commands(text):
    """Words of each line of `bash` blocks; lines that end with a backslash are joined."""
    blocks = [code for kind, _, code in _BLOCK.findall(text) if kind == "bash"]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return list(filter(None, (shlex.split(line, comments=True) for line in lines)))


def trainings(text):
    """What follows `flfast.train` in a command, for each command that trains."""
    found = []
    for words in commands(text):
        start = next((i for i, word in enumerate(words) if "flfast.train" in word), None)
        if start is not None:
            found.append(words[start + 1 :])
    return found


def jobs(words):
    """Overrides of jobs of a training, in which each value of a sweep occurs."""
    parsed = OverridesParser.create().parse_overrides([w for w in words if w[0] not in "-"])
    values = [
        [f"{each.get_key_element()}={value}" for value in each.sweep_string_iterator()]
        if each.is_sweep_override()
        else [each.input_line]
        for each in parsed
    ]
    longest = max((len(each) for each in values), default=0)
    return [[each[min(i, len(each) - 1)] for each in values] for i in range(longest)]
