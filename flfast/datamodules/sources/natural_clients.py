"""Numbers for the clients that a dataset names: writers, hospitals, subjects, domains."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flfast.datamodules.missing import FIX, missing_owners, refuse_missing
from flfast.datamodules.value_names import names_of, number_values, warn_of_odd_names

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
