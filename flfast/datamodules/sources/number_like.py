"""Columns of text that hold numbers, and values that keep a column from being one of numbers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

_GROUPED = re.compile(r"\s*[-+]?(\d{1,3}([, '._]\d{3})+|\d+)([.,]\d+)?\s*")


def as_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """A column of text as int64 or float64; None unless all texts that are not blank are numbers.

    Blank texts are missing numbers.
    """
    import pyarrow as pa
    from pyarrow import compute

    for kind in (pa.int64(), pa.float64()):
        parts = []
        try:
            for chunk in column.chunks:  # most columns of text end in the first one
                plain = compute.utf8_trim_whitespace(chunk)
                plain = compute.replace_substring_regex(plain, r"^\+([^-+])", r"\1")
                given = compute.not_equal(plain, "")
                parts.append(compute.if_else(given, plain, None).cast(kind))
        except pa.ArrowInvalid:
            continue
        found = pa.chunked_array(parts, kind)
        return found if found.null_count < len(found) else None
    return None


def odd_ones(values: Sequence[str | None]) -> np.ndarray:
    """Values that are no numbers in a column of text that is mostly numbers, bool [N].

    No value is odd unless at least half of the values look like numbers, such as `1,234`, `5 %` or
    `$5`, and at least one is no number, such as these or `?`. None is a missing value, which does
    not count.

    >>> odd_ones(["1", "2.5", "?", None]).tolist()
    [False, False, True, False]
    >>> odd_ones(["Ulm", "Bonn", "3"]).any()
    np.False_
    """
    given = [value if value is not None and value.strip() else None for value in values]
    odd = np.array([value is not None and not is_number(value) for value in given], dtype=bool)
    alike = sum(value is not None and _looks_like(value) for value in given)
    num_given = sum(value is not None for value in given)
    return odd if num_given <= 2 * alike else np.zeros_like(odd)


def is_number(text: str) -> bool:
    """Whether a text is a number in ASCII, without signs that group its digits.

    >>> is_number(" 1.5e3"), is_number("1_000")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and text.strip().isascii()


def _looks_like(text: str) -> bool:
    # Without signs of percent and money.
    plain = "".join(c for c in text if c not in "%‰" and unicodedata.category(c) != "Sc")
    return is_number(text) or _GROUPED.fullmatch(plain) is not None
