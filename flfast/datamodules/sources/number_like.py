"""Finds values that keep a column of numbers from being one."""

import re
from collections.abc import Sequence

import numpy as np

_GROUPED = re.compile(r"\s*[-+]?(\d{1,3}([, '.]\d{3})+|\d+)([.,]\d+)?\s*")


def odd_ones(values: Sequence[str | None]) -> np.ndarray:
    """Values that are no numbers in a column of text that is mostly numbers, bool [N].

    No value is odd unless at least half of the values look like numbers, such as `1,234`, and at
    least one is no number, such as `1,234` or `?`.

    Args:
        values: None for missing ones, which do not count.

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
    """Whether `float` reads it."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _looks_like(text: str) -> bool:
    return is_number(text) or _GROUPED.fullmatch(text) is not None
