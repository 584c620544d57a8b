"""Reads rows of CSV files with strict quoting: a stray quote is an error and swallows no row."""

import csv
from collections.abc import Callable, Iterable, Iterator


def strict_rows(
    lines: Iterable[str], *, like_a_row: Callable[[str, int], bool]
) -> Iterator[list[str]]:
    """Rows of a CSV file, header included.

    Args:
        lines: of the file, with their ends.
        like_a_row: (line, number of columns in the first row) -> whether it could be a row of its
            own. A quoted value may have line breaks, but no line that looks like a row: a stray
            quote at the beginning of a value would hide all rows up to the next quote.

    Raises:
        ValueError: if quotes do not pair up; names the line, counted from 1.
    """
    seen: list[str] = []

    def watched() -> Iterator[str]:
        for line in lines:
            seen.append(line)
            yield line

    rows = csv.reader(watched(), strict=True)
    width = 0
    first = 1  # line in which the row begins
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise ValueError(
                f"line {first}: {error}: a quoted value that begins here does not end before a "
                "comma or at the end of a line; double the quotes within a value"
            ) from None
        if row is None:
            return
        width = width or len(row)
        if any(like_a_row(line, width) for line in seen[1:]):
            raise ValueError(
                f"line {first}: a quoted value that begins here goes on for {len(seen)} lines, "
                "which look like rows; remove a stray quote, or the line breaks within the value"
            )
        yield row
        first += len(seen)
        seen.clear()


def has_all_commas(line: str, width: int) -> bool:
    """Whether a line has as many values as the first row of its file."""
    return line.count(",") >= width - 1
