"""Reads rows of CSV files with strict quoting: a stray quote is an error and swallows no row."""

import csv
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence

from flfast.datamodules.sources.number_like import is_number

log = logging.getLogger(__name__)


def strict_rows(lines: Iterable[str], *, where: str) -> Iterator[list[str]]:
    """Rows of a CSV file, header included.

    A quoted value may have line breaks. But a stray quote hides all rows up to the next quote, so
    a quoted line that looks like a row is refused: one with as many values, of which those that
    are numbers in the row are numbers, too. Where no column of the row is a number, nobody can
    tell, and a warning names the line.

    Raises:
        ValueError: if quotes do not pair up, or a quoted line looks like a row; names the line,
            counted from 1. Or if the text is not UTF-8.
    """
    seen: list[str] = []

    def watched() -> Iterator[str]:
        for line in lines:
            seen.append(line)
            yield line

    rows = csv.reader(watched(), strict=True)
    width = 0
    first = 1  # line in which the row begins
    longest = csv.field_size_limit(sys.maxsize)  # of the whole process: a text may be long
    try:
        for row in rows:
            width = width or len(row)
            if len(seen) > 1 and width > 1:
                _check_quoted_lines(row[:width], seen, f"line {first}", where)
            yield row
            first += len(seen)
            seen.clear()
    except csv.Error as error:
        raise ValueError(
            f"line {first}: {error}: a quoted value that begins here does not end before a comma "
            "or at the end of a line; double the quotes within a value"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{error}; save the file as UTF-8") from None
    finally:
        csv.field_size_limit(longest)


def _check_quoted_lines(row: Sequence[str], lines: Sequence[str], place: str, where: str) -> None:
    """Refuse a row whose quoted value has lines that look like rows."""
    quoted = next((column for column, value in enumerate(row) if "\n" in value), len(row))
    numbers = [column for column, value in enumerate(row) if is_number(value)]
    before = [column for column in numbers if column < quoted]
    for line in lines[1:]:
        values = [value.strip(' "\r\n') for value in line.split(",")]
        # Of the last line, the values behind the quote are those of the row itself.
        known = before if before or line is lines[-1] else numbers
        if len(values) < len(row) or (len(values) > len(row) and not before):
            continue
        if known and all(is_number(values[column]) for column in known):
            raise ValueError(
                f"{place}: a quoted value that begins here goes on for {len(lines)} lines, which "
                "look like rows; remove a stray quote, or the line breaks within the value"
            )
        if not known and line is not lines[-1]:
            log.warning(
                "%s: %s: a quoted value goes on for %d lines; one could be a row: %s",
                *(where, place, len(lines), line.strip()[:60]),
            )
            return
