"""Names of classes, categories and clients: their numbers, and names that may be mistakes."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flfast.datamodules.missing import FIX, missing_owners, refuse_missing, rows_of

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

    These are spellings of missing values, and texts that differ from a more frequent one in case
    or blanks only. One line names all of a column. `numbers` says which of the values each row
    holds, int64 [N]; -1 for none.
    """
    alike: dict[str, list[int]] = {}
    for number, value in enumerate(values):
        if isinstance(value, str):
            alike.setdefault(" ".join(value.split()).casefold(), []).append(number)
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


_WITHOUT = "an integer owner of -1 is a missing one, and a test set may lack all owners or none"


class Clients(NamedTuple):
    """The natural clients of a dataset.

    Attributes:
        owner: client of every example, int64 [N]; -1 for none.
        names: name of each client; empty if clients have no other name than their number.
    """

    owner: np.ndarray
    names: tuple[str, ...]


def number_clients(
    names: Sequence[object] | np.ndarray, is_test: np.ndarray | None, *, where: str
) -> Clients:
    """Clients are the names [N] with training examples, numbered in sorted order.

    A name that has test examples only is -1: it has nothing to train on, and is no client. So is
    every test example if none of them names a client. `is_test` is bool [N]. Errors and warnings
    begin with `where`.

    Raises:
        ValueError: if names are missing, or some are numbers and others texts.
    """
    found = names if isinstance(names, np.ndarray) else np.fromiter(names, object, len(names))
    refuse_missing(where, unowned(found, is_test), advice=f"{FIX}; {_WITHOUT}")
    named = ~missing_owners(found)
    try:
        known, numbers = number_values(found[named])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    rows = np.full(len(found), -1, dtype=np.int64)
    rows[named] = numbers
    warn_of_odd_names(where, known, rows)
    training = rows if is_test is None else rows[~is_test]
    clients = np.unique(training)
    places = np.full(len(known) + 1, -1, dtype=np.int64)  # the last one is that of row -1
    places[clients] = np.arange(len(clients))
    return Clients(places[rows], names_of(known[client] for client in clients))


def unowned(names: np.ndarray | Sequence[object], is_test: np.ndarray | None) -> np.ndarray:
    """Examples that lack a client and need one, bool [N].

    Training examples need one. Test examples do, unless none of them has one.
    """
    missing = missing_owners(names)
    if is_test is not None and missing[is_test].all():
        return missing & ~is_test
    return missing
