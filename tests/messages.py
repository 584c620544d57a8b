"""All messages of the package: `python tests/messages.py` writes messages.txt.

This record is the only place that pins their words. Tests of a message pin what it is about: key,
value, and a few words where one key has several messages.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests" / "messages.txt"
FEWEST_WORDS = 4


def lines() -> list[str]:
    """The sentences in the order of the alphabet, with `{}` for each value."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "flfast").rglob("*.py"))
    return sorted({said for source in sources for said in sentences(source)})


def sentences(source: str) -> Iterator[str]:
    """Strings and f-strings of a module that have several words; docstrings are none."""
    tree = ast.parse(source)
    nodes = [*ast.walk(tree)]
    docs = {node.value for node in nodes if isinstance(node, ast.Expr)}
    parts = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if node not in docs | parts and (said := text(node)):
            words = re.findall(r"[A-Za-z]{2,}", said)
            if " " in said and len(words) >= FEWEST_WORDS:
                yield said.replace("\n", "\\n")


def text(node: ast.AST) -> str:
    """A string as it is written; an empty one for any other node."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text(part) or "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


if __name__ == "__main__":
    RECORD.write_text("\n".join([*lines(), ""]), encoding="utf-8")
