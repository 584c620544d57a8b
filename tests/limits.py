"""The limits of code that CONTRIBUTING.md states, read from there."""

import re

from pages import ROOT

_STATED = re.compile(
    r"Files have at most (\d+) lines, half of them at most (\d+)\.\s+"
    r"Functions have at most (\d+) below\s+their docstring, nine of ten at most (\d+)\.\s+"
    r"Algorithms have at most (\d+) below theirs,\s+half of them at most (\d+)\."
)
_FOUND = _STATED.search(" ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split()))
assert _FOUND is not None, (
    "CONTRIBUTING.md does not state the limits as tests/limits.py reads them"
)
FILE, MEDIAN_FILE, FUNCTION, MOST_FUNCTIONS, ALGORITHM, MEDIAN_ALGORITHM = map(
    int, _FOUND.groups()
)
