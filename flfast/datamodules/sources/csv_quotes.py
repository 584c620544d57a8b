"""Reads rows of CSV files with strict quoting: quotes must pair up, and swallow no rows."""

import csv
import re
import sys
from collections.abc import Iterable, Iterator

from flfast.datamodules.sources.number_like import is_number

_EVIDENCE = 3  # numbers in a quoted value, or line breaks if it has none, that are no chance


def strict_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Rows of a CSV file, header included; a quoted value may have line breaks.

    Raises:
        ValueError: if quotes do not pair up, or a value is likely to be rows between two stray
            quotes; names the line, counted from 1. Or if the text is not UTF-8.
    """
    rows = csv.reader(lines, strict=True)
    first, width = 1, 0  # line in which the row begins, number of columns
    longest = csv.field_size_limit(sys.maxsize)  # of the whole process: a text may be long
    try:
        for row in rows:
            width = width or len(row)
            if rows.line_num > first and _has_swallowed(row, width):
                reason = "the lines of a quoted value that begins here look like rows; remove a"
                advice = "stray quote, or if they are a text, save the table as Parquet"
                raise ValueError(f"line {first}: {reason} {advice}")
            yield row
            first = rows.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"line {first}: {error}: a quoted value that begins here does not end before a comma "
            "or at the end of a line; double the quotes within a value"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{error}; save the file as UTF-8") from None
    finally:
        csv.field_size_limit(longest)


def _has_swallowed(row: list[str], width: int) -> bool:
    """Whether the only value with line breaks is a part of several rows of this width.

    Two stray quotes that pair up are in one column, so each line completes to a row. These have
    numbers in common columns, or nowhere. Text that people write has blanks behind its commas.
    """
    broken = [column for column, value in enumerate(row) if "\n" in value or "\r" in value]
    if len(broken) != 1 or ", " in row[broken[0]] or width < 2:
        return False
    column = broken[0]
    inner = [line.split(",") for line in re.split(r"\r\n|\r|\n", row[column])]
    inner[0], inner[-1] = row[:column] + inner[0], inner[-1] + row[column + 1 :]
    if any(len(values) != width or not all(values) for values in inner):
        return False
    are_numbers = [[is_number(value) for value in values] for values in inner]
    always = [all(places) for places in zip(*are_numbers, strict=True)]
    num_quoted = sum(always) * (len(inner) - 1) + always[column]
    return max(num_quoted, 0 if any(map(any, are_numbers)) else len(inner) - 1) >= _EVIDENCE
