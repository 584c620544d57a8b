"""Reads rows of CSV files with strict quoting: quotes must pair up."""

import csv
import sys
from collections.abc import Iterable, Iterator


def strict_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Rows of a CSV file, header included; a quoted value may have line breaks.

    Raises:
        ValueError: if quotes do not pair up; names the line, counted from 1. Or if the text is not
            UTF-8.
    """
    rows = csv.reader(lines, strict=True)
    first = 1  # line in which the row begins
    longest = csv.field_size_limit(sys.maxsize)  # of the whole process: a text may be long
    try:
        for row in rows:
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
