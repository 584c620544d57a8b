"""Reads CSV files that users write. Errors name the option, the file and the line. Torch-free."""

import codecs
import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class CsvFile(NamedTuple):
    """A CSV file in UTF-8, whose first line is a header; `option` is the key that names it."""

    option: str
    path: str

    def where(self, line: int) -> str:
        """Beginning of an error about a line, from 1."""
        return f"{self.option}={self.path}, line {line}"

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """(line, values) of the header and then of every row.

        Blank lines and spaces around values are left out. Each row has as many values as the
        header.

        Raises:
            ValueError: with option, file, line and what is allowed, if the file cannot be read.
        """
        reader = csv.reader(io.StringIO(self._text(), newline=""), strict=True)
        num_columns = 0
        try:
            for values in reader:
                row = [value.strip() for value in values]
                if not any(row):
                    continue
                num_columns = num_columns or len(row)
                if len(row) != num_columns:
                    raise ValueError(
                        f"{self.where(reader.line_num)}: has {len(row)} values for {num_columns} "
                        f"columns; allowed: a value for each column, and one client per row"
                    )
                yield reader.line_num, row
        except csv.Error as error:
            where = self.where(reader.line_num)
            raise ValueError(f"{where}: {error}; allowed: rows of a CSV file") from None
        if not num_columns:
            raise ValueError(f"{self.where(1)}: is empty; allowed: a CSV file with a header")

    def _text(self) -> str:
        try:
            content = Path(self.path).read_bytes().removeprefix(codecs.BOM_UTF8)
            return content.decode("utf-8")
        except OSError as error:
            raise ValueError(f"{self.option}={self.path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise ValueError(
                f"{self.where(line)}: is not UTF-8; allowed: a CSV file in UTF-8"
            ) from None


_MAX_DIGITS = 9


def parse_integer(where: str, column: str, text: str) -> int:
    """An integer >= 0; an error begins with `where`, and names the column.

    Raises:
        ValueError: with column, value and what is allowed.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise ValueError(
            f"{where}: {column}={shortened(text)}; allowed: an integer >= 0 with at most "
            f"{_MAX_DIGITS} digits"
        )
    return int(text)


def shortened(text: str) -> str:
    """The text, or its first 40 characters."""
    return text if len(text) <= 40 else f"{text[:40]}..."
