"""Numbers for the clients that a dataset names: writers, hospitals, subjects, domains."""

from collections.abc import Sequence

import numpy as np

from flfast.datamodules.missing import FIX, missing_owners, refuse_missing

_WITHOUT = "an integer owner of -1 is a missing one, and a test set may lack all owners or none"


def number_clients(
    names: Sequence[object] | np.ndarray,
    is_test: np.ndarray | None,
    *,
    where: str,
    advice: str = FIX,
) -> np.ndarray:
    """Client of every example, int64 [N]: names with training examples, numbered in sorted order.

    A name that has test examples only is -1: it has nothing to train on, and is no client. So is
    every test example if none of them names a client.

    Args:
        names: of the client of every example, [N].
        is_test: members of the test set, bool [N]; None if there is no test set.
        where: beginning of an error: the key that names the clients.
        advice: what a user can do about missing names.

    Raises:
        ValueError: if names are missing.
    """
    found = names if isinstance(names, np.ndarray) else np.fromiter(names, object, len(names))
    lacking = unowned(found, is_test)
    refuse_missing(where, lacking, advice=f"{advice}; {_WITHOUT}")
    named, found = ~missing_owners(found), np.ma.getdata(found)
    training = found if is_test is None else found[~is_test]
    known, owner = np.unique(training), np.full(len(found), -1, dtype=np.int64)
    if not len(known):
        return owner
    place = np.searchsorted(known, found[named]).clip(max=len(known) - 1)
    owner[named] = np.where(known[place] == found[named], place, -1)
    return owner


def unowned(names: np.ndarray | Sequence[object], is_test: np.ndarray | None) -> np.ndarray:
    """Examples that lack a client and need one, bool [N].

    Training examples need one. Test examples do, unless none of them has one.

    Args:
        names: of the client of every example, [N].
        is_test: members of the test set, bool [N]; None if there is no test set.
    """
    missing = missing_owners(names)
    if is_test is not None and missing[is_test].all():
        return missing & ~is_test
    return missing
