"""The tables of published results: rows of the conformance program, and what its runs say of them.

`python -m docs.verdicts FOLDER...` reads the records that `python -m flfast.conformance` left in
folders, keeps them in benchmarks/results/conformance.json, and writes the tables of
docs/conformance.md and docs/reproductions.md anew. Without a folder it only writes the tables.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs.families import markdown
from flfast.output.results.formats import readable
from flfast.zoo.commands.conformance.conformance_files import read_record
from flfast.zoo.commands.conformance.row_files import LEVELS, ConformanceRow, read_rows

DOCS = Path(__file__).parent
RECORD = DOCS.parent / "benchmarks" / "results" / "conformance.json"
_TABLE = re.compile(r"(<!-- table (rows|claims) -->).*?(<!-- /table -->)", re.DOTALL)

Record = dict[str, dict[str, Any]]


def rows_table(rows: Sequence[ConformanceRow], record: Record) -> str:
    """A line for every row: what it shows, and whether it holds."""
    head = ["row", "level", "shows", "needs", "verdict", "time"]
    return markdown(head, *(_row_cells(row, record.get(row.name, {})) for row in rows))


def _row_cells(row: ConformanceRow, found: dict[str, Any]) -> list[str]:
    needs = ", ".join([*(pattern.partition("/")[0] for pattern in row.needs), *row.packages])
    seconds = readable(found["seconds"]) if found else ""
    verdict = found.get("verdict", "not run")
    return [f"`{row.name}`", row.level, row.title.removesuffix("."), needs, verdict, seconds]


def claims_table(rows: Sequence[ConformanceRow], record: Record) -> str:
    """A line for every claim of the rows that have run: what is compared, and the numbers."""
    cells = [["source", "row", "claim", "here", "published, or the other run", "holds"]]
    for row in rows:
        source = f"[{row.source.paper}]({row.source.url})"
        for claim in record.get(row.name, {}).get("claims", ()):
            numbers = [_number(claim["value"]), _number(claim["reference"])]
            holds = "✓" if claim["holds"] else ""
            cells.append([source, f"`{row.name}`", claim["claim"], *numbers, holds])
            source = ""
    return markdown(*cells)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def page(text: str, record: Record) -> str:
    """A page with its tables made anew."""
    rows = [row for level in LEVELS for row in read_rows(level)]
    made = {"rows": rows_table, "claims": claims_table}
    return _TABLE.sub(lambda m: f"{m[1]}\n\n{made[m[2]](rows, record)}\n\n{m[3]}", text)


def kept() -> Record:
    """The record of this project."""
    return read_record(RECORD.parent)


def main(folders: Sequence[str]) -> None:
    """Keep the records of folders, and write the pages."""
    record = kept()
    for folder in folders:
        ran = read_record(Path(folder)).items()
        record |= {name: row for name, row in ran if row["holds"] is not None}
    lines = {"rows": [record[name] for name in sorted(record)]}
    RECORD.write_text(f"{json.dumps(lines, indent=1)}\n", encoding="utf-8")
    for name in ("conformance.md", "reproductions.md"):
        place = DOCS / name
        place.write_text(page(place.read_text("utf-8"), record), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
