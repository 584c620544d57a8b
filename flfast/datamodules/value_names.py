"""Names of classes, categories and clients: their numbers, and names that may be mistakes."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from flfast.datamodules.missing import FIX, missing_owners, missing_rows, refuse_missing, rows_of

log = logging.getLogger(__name__)

_SHOWN = 3

_LIKE_MISSING = {
    *("?", "na", "n/a", "nan", "-nan", "nat", "null", "none", "<na>", "#na", "#n/a", "#n/a n/a"),
    *("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
}
"""Spellings of missing values that pandas or people use, in lower case."""

_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]{1,6})?", re.IGNORECASE)


def number_names(where: str, values: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The different names, sorted, and the number of each value [N] among them, int64 [N].

    A name is the exact text of a value, of a whole float that of the integer: pandas makes floats
    of integers where a value is missing. Numbers are sorted by value, equal ones by text.

    Raises:
        ValueError: if some are texts and others are not, or floats may stand for other integers.
    """
    different, places = np.ma.getdata(values), np.arange(len(values))
    if values.dtype.kind != "O":
        different, places = np.unique(different, return_inverse=True)
    if len({isinstance(value, str) for value in different}) > 1:
        kinds = ", ".join(sorted({type(value).__name__ for value in different}))
        raise ValueError(f"{where}: values of the types {kinds}; allowed: of one type")
    texts = [_name_of(where, value) for value in different]
    key: Callable[[str], Any] = Decimal if all(map(_NUMBER.fullmatch, texts)) else str
    ordered = sorted(sorted(set(texts)), key=key)
    number = {name: place for place, name in enumerate(ordered)}
    return ordered, np.array([number[name] for name in texts], dtype=np.int64)[places]


def _name_of(where: str, value: object) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, (float, np.floating)):
        return str(value)
    digits = np.finfo(type(value)).nmant + 1
    if abs(value) >= 2**digits:
        raise ValueError(
            f"{where}: the float {value:.17g} may stand for several integers, as all from "
            f"2^{digits} on; allowed: names as text or integers"
        )
    return str(int(value) if value == int(value) else value)


_MARKS = {"true": True, "false": False, "1": True, "0": False, "test": True, "train": False}


def marked_for_testing(where: str, values: np.ndarray) -> np.ndarray:
    """The rows that are marked for testing, bool [N]. A row without a mark is none.

    Raises:
        ValueError: if there are other marks, which the error names, or all rows are for testing.
    """
    missing = missing_rows(values)
    known, numbers = number_names(where, values[~missing])
    if odd := [name for name in known if name.strip().lower() not in _MARKS]:
        raise ValueError(f"{where} holds {odd[:3]}; allowed, in any case: {', '.join(_MARKS)}")
    is_test = np.zeros(len(values), dtype=bool)
    is_test[~missing] = np.array([_MARKS[name.strip().lower()] for name in known], bool)[numbers]
    if is_test.all():
        raise ValueError(f"{where}: all rows are for testing")
    return is_test


def names_of(values: Iterable[object]) -> tuple[str, ...]:
    """Values as names, by number; empty if they are the numbers 0, 1, ... themselves."""
    names = tuple(map(str, values))
    return () if names == tuple(map(str, range(len(names)))) else names


def warn_of_odd_names(where: str, values: Sequence[object], numbers: np.ndarray) -> None:
    """Warn of texts in a column of names that may be mistakes.

    These are spellings of missing values, and texts that differ from a more frequent one in case
    or blanks only, or are the same number. One line names all of a column. `numbers` says which
    of the values each row holds, int64 [N]; -1 for none.
    """
    alike: dict[object, list[int]] = {}
    for number, value in enumerate(values):
        if isinstance(value, str):
            folded = " ".join(value.split()).casefold()
            same = Decimal(folded) if _NUMBER.fullmatch(folded) else folded
            alike.setdefault(same, []).append(number)
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


_WITHOUT = "an owner of -1 is a missing one, and a test set may lack all owners or none"


class Clients(NamedTuple):
    """The natural clients of a dataset: two attributes of `Examples`.

    Attributes:
        owner: client of every example, int64 [N]; -1 for none.
        client_names: name of each client; empty if clients have no other name than their number.
    """

    owner: np.ndarray
    client_names: tuple[str, ...]


def number_clients(
    names: Sequence[object] | np.ndarray, is_test: np.ndarray | None, *, where: str
) -> Clients:
    """Clients are the names [N] with training examples, numbered in sorted order.

    A name that has test examples only is -1: it has nothing to train on, and is no client. So is
    every test example if none of them names a client. `is_test` is bool [N]. Errors and warnings
    begin with `where`.

    Raises:
        ValueError: if names are missing, or as `number_names`.
    """
    found = names if isinstance(names, np.ndarray) else np.fromiter(names, object, len(names))
    refuse_missing(where, unowned(found, is_test), advice=f"{FIX}; {_WITHOUT}")
    named = ~missing_owners(found)
    known, numbers = number_names(where, found[named])
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
