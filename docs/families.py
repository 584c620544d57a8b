"""Pages with a table for each family of algorithms. A YAML's first line names its family."""

import re
from collections.abc import Callable
from pathlib import Path

CONF = Path(__file__).parents[1] / "conf" / "algorithm"
_TABLE = re.compile(r"<!-- table (\w+) -->.*?<!-- /table -->", re.DOTALL)


def families() -> dict[str, str]:
    """The family of every algorithm, by name."""
    lines = {path.stem: path.read_text("utf-8") for path in sorted(CONF.glob("*.yaml"))}
    return {
        name: text.partition("\n")[0].removeprefix("# family: ") for name, text in lines.items()
    }


def filled(text: str, table: Callable[[list[str]], str], **others: Callable[[], str]) -> str:
    """A page with its tables made anew.

    Args:
        text: the page.
        table: names of the algorithms of a family -> their table.
        others: tables of the page that are not of a family, by name.

    Raises:
        ValueError: if an algorithm's family has no table in the page.
    """
    family_of, marks = families(), _TABLE.findall(text)
    for name, family in family_of.items():
        if family not in marks:
            raise ValueError(f"{name}.yaml begins with {family!r}, not with a family of the page")

    def made(mark: re.Match[str]) -> str:
        members = [name for name, family in family_of.items() if family == mark[1]]
        found = others[mark[1]]() if mark[1] in others else table(members)
        return f"<!-- table {mark[1]} -->\n\n{found}\n\n<!-- /table -->"

    return _TABLE.sub(made, text)


def markdown(*rows: list[str]) -> str:
    """A table; the first row has the names of the columns."""
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
