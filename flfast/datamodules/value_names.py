"""Names of classes, categories and clients: their numbers, and names that may be mistakes."""

import logging
from collections.abc import Hashable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from flfast.datamodules.missing import rows_of

log = logging.getLogger(__name__)

_SHOWN = 3

_LIKE_MISSING = {
    *("?", "na", "n/a", "nan", "-nan", "nat", "null", "none", "<na>", "#na", "#n/a", "#n/a n/a"),
    *("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
}
"""Spellings of missing values that pandas or people use, in lower case."""


def number_values(values: np.ndarray) -> tuple[list[Any], np.ndarray]:
    """The different values, sorted, and the number of each value [N] among them, int64 [N].

    Raises:
        ValueError: if some are numbers and others texts, which have no order.
    """
    if values.dtype.kind != "O":
        known, numbers = np.unique(np.ma.getdata(values), return_inverse=True)
        return known.tolist(), numbers.astype(np.int64)
    try:
        ordered = sorted(set(values.tolist()))
    except TypeError:
        kinds = ", ".join(sorted({type(value).__name__ for value in values}))
        raise ValueError(f"values of the types {kinds}; allowed: of one type") from None
    place = {value: number for number, value in enumerate(ordered)}
    return ordered, np.fromiter((place[value] for value in values), np.int64, len(values))


def names_of(values: Iterable[object]) -> tuple[str, ...]:
    """Values as names, by number; empty if they are the numbers 0, 1, ... themselves."""
    names = tuple(map(str, values))
    return () if names == tuple(map(str, range(len(names)))) else names


def warn_of_odd_names(where: str, values: Sequence[object], numbers: np.ndarray) -> None:
    """Warn of texts in a column of names that may be mistakes.

    These are spellings of missing values, texts that differ from a more frequent one in case or
    blanks only, and other spellings of a number, such as 1 and 1.0. One line names all of a
    column. `numbers` says which of the values each row holds, int64 [N]; -1 for none.
    """
    alike: dict[Hashable, list[int]] = {}
    for number, value in enumerate(values):
        if isinstance(value, str):
            alike.setdefault(_meaning(value), []).append(number)
    counts = np.bincount(numbers[numbers >= 0], minlength=len(values))
    odd: dict[int, str] = {}
    for text, group in alike.items():
        usual = max(group, key=counts.__getitem__)
        for number in group:
            if text in _LIKE_MISSING:
                odd[number] = "is not read as missing"
            elif number != usual:
                odd[number] = f"is not {values[usual]!r}"
    if odd:
        shown = [
            f"{values[number]!r} in {rows_of(numbers == number)} {reason}"
            for number, reason in list(odd.items())[:_SHOWN]
        ]
        more = [f"and {len(odd) - _SHOWN} more such names"] if len(odd) > _SHOWN else []
        log.warning(
            "%s: %s; each is a name of its own, so mend the data if one is a mistake",
            *(where, "; ".join([*shown, *more])),
        )


def _meaning(text: str) -> Hashable:
    """Key that is equal for texts that may be one name: the number, or the text in lower case."""
    plain = " ".join(text.split()).casefold()
    try:
        found = Decimal(plain) if "_" not in plain else None  # 1_0 need not be 10
    except InvalidOperation:
        return plain
    return found if found is not None and found.is_finite() else plain
