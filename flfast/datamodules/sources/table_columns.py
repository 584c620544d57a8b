"""Makes inputs of the columns of a table, by a record of scales and codes that is fitted once."""

import logging
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch

from flfast.datamodules.missing import complete_rows
from flfast.datamodules.number_range import ALL, Scales, as_float32, fitted_scales, scaled
from flfast.datamodules.preprocessing import ColumnScale, TableColumns
from flfast.datamodules.sources.source import RawInputs
from flfast.datamodules.sources.table_files import Columns
from flfast.datamodules.value_names import number_clients, warn_of_odd_names

log = logging.getLogger(__name__)


class Filling(NamedTuple):
    """What replaces missing numbers.

    Attributes:
        by: `mean` or `median` of the training rows, or a number.
        indicates: whether another input says of each number whether it was missing, of columns
            where that happens in training.
    """

    by: Literal["mean", "median"] | float
    indicates: bool = False


class RowClients(NamedTuple):
    """The client of each row.

    Attributes:
        numbers: int64 [N]; -1 for none.
        names: of each client.
    """

    numbers: np.ndarray
    names: Sequence[str]


class Fit(NamedTuple):
    """How columns are fitted.

    Attributes:
        is_training: the rows that count, bool [N].
        scales: whether numbers get mean 0 and deviation 1.
        clients: of the rows, if each has scales of its own, too.
        filling: what replaces missing numbers; None: there must be none.
    """

    is_training: np.ndarray
    scales: bool = True
    clients: RowClients | None = None
    filling: Filling | None = None


def fit_columns(
    columns: Columns, numeric: Sequence[str], categorical: Sequence[str], fit: Fit
) -> TableColumns:
    """The record of columns: fills and scales of training rows, and all names of categories.

    Raises:
        ValueError: if a column holds no numbers, or none in training, or some that lose their
            digits when scaled.
    """
    fills, indicators, clients = dict[str, float](), list[str](), fit.clients
    if fit.filling is not None:
        for name in numeric:
            fills[name], lacks = _fill(columns, name, fit.is_training, fit.filling.by)
            indicators += [name] if lacks and fit.filling.indicates else []
    of_all: dict[str, ColumnScale | None] = dict.fromkeys(numeric)
    of_clients = dict[str, Mapping[str, ColumnScale]]()
    if fit.scales and numeric:
        group = None if clients is None else clients.numbers
        values = _numbers(columns, numeric, fills)
        fitted = fitted_scales(values, is_training=fit.is_training, group=group, names=numeric)
        of_all = {**by_name(numeric, fitted.pop(ALL))}
        if clients is not None:
            of_clients = {clients.names[k]: by_name(numeric, s) for k, s in fitted.items()}
    categories = dict[str, tuple[str | None, ...]]()
    for name in categorical:
        codes, names = columns.codes(name)
        warn_of_odd_names(f"data.categorical={name}", names, codes)
        categories[name] = tuple(names)
    return TableColumns(
        numeric=of_all,
        fills=fills,
        indicators=tuple(indicators),
        clients=of_clients,
        categories=categories,
    )


def _fill(
    columns: Columns, name: str, is_training: np.ndarray, by: str | float
) -> tuple[float, bool]:
    """What replaces missing numbers of a column, and whether one is missing in training rows."""
    missing = columns.missing(name)[is_training]
    if not isinstance(by, str):
        return by, bool(missing.any())
    values = _numbers(columns, [name], {name: np.nan})[is_training, 0]
    if missing.all():
        raise ValueError(
            f"{columns.path}: column {name} has no number in training rows, whose {by} "
            "data.missing asks for; allowed: leave the column out"
        )
    middle = np.median(values[~missing]) if by == "median" else np.mean(values[~missing])
    return float(middle), bool(missing.any())


def table_inputs(columns: Columns, kept: TableColumns, clients: RowClients | None) -> np.ndarray:
    """Inputs float32 [N, D] of columns, as a record says: numbers, indicators, codes.

    A row of a client that has no scales of its own gets those of all.

    Raises:
        ValueError: if a column is missing, a value is, or it is no number or an unknown name.
    """
    columns.require([*kept.numeric], "numeric")
    columns.require([*kept.categories], "categorical")
    numeric = [*kept.numeric]
    numbers = _numbers(columns, numeric, kept.fills)
    if any(kept.numeric.values()):
        scales = {ALL: as_scales(kept.numeric, numeric)}
        for place, name in enumerate(clients.names if clients else ()):
            if name in kept.clients:
                scales[place] = as_scales(kept.clients[name], numeric)
        group = None if clients is None else clients.numbers
        numbers = scaled(numbers, scales, group=group, names=numeric)
    numbers = columns_as_float32(numbers, "numeric", numeric)
    lacking = [columns.missing(name) for name in kept.indicators]
    codes = [columns.codes(name, known)[0] for name, known in kept.categories.items()]
    return np.column_stack([numbers, *lacking, *codes]).astype(np.float32)


def raw_rows(
    columns: Columns, kept: TableColumns, *, key: str | None, owner: str | None, missing: str
) -> RawInputs:
    """Inputs of rows whose targets are not known, of all rows that are complete.

    `owner` is the column of clients, if these have scales of their own; `missing` is
    `data.missing`.

    Raises:
        ValueError: if a column is missing, a value is, or one is no number or an unknown name.
    """
    where = columns.path
    if key is not None and key not in columns.names:
        raise ValueError(f"key={key} is no column of {where}; allowed: {', '.join(columns.names)}")
    read = [*kept.names, *([] if owner is None else [owner])]
    for name in read:
        if name not in columns.names:
            raise ValueError(
                f"{where} has no column {name!r}, which the model reads; it has "
                f"{', '.join(columns.names)}"
            )
    if unread := [name for name in columns.names if name not in {*read, key}]:
        log.warning("%s: the model does not read the columns %s", where, ", ".join(unread))
    lacking = {
        f"{where}: column {name}": columns.missing(name) & (not kept.may_lack(name))
        for name in kept.names
    }
    whole = complete_rows(lacking, missing, is_test=None)
    columns, clients = columns.kept(whole), None
    if owner is not None:
        names = columns.as_names(owner)
        clients = row_clients(*number_clients(names, None, where=f"data.owner={owner}"))
    about = {"row": np.flatnonzero(whole)}
    if key is not None:
        about[key] = columns.as_names(key)
    return RawInputs(torch.from_numpy(table_inputs(columns, kept, clients)), about)


def row_clients(owner: np.ndarray, client_names: Sequence[str]) -> RowClients:
    """The clients of rows, which are named by their numbers if they have no other names."""
    return RowClients(owner, client_names or [*map(str, range(int(owner.max()) + 1))])


def by_name(names: Sequence[str], scales: Scales) -> dict[str, ColumnScale]:
    """Scales by the names [D] of their columns."""
    pairs = zip(names, scales.mean.tolist(), scales.deviation.tolist(), strict=True)
    return {name: ColumnScale(mean=mean, deviation=deviation) for name, mean, deviation in pairs}


def as_scales(named: Mapping[str, ColumnScale | None], names: Sequence[str]) -> Scales:
    """Scales of the columns `names` [D]; one without a scale stays as it is."""
    as_stored = ColumnScale(mean=0.0, deviation=1.0)
    chosen = [named[name] or as_stored for name in names]
    return Scales(np.array([s.mean for s in chosen]), np.array([s.deviation for s in chosen]))


def columns_as_float32(values: np.ndarray, option: str, names: Sequence[str]) -> np.ndarray:
    """Columns of numbers as float32 [N, D].

    Raises:
        ValueError: naming the column of a number that is too large.
    """
    columns = zip(names, values.T, strict=True)
    return _stack(
        [as_float32(f"data.{option}={name}", each) for name, each in columns], len(values)
    )


def _numbers(columns: Columns, names: Sequence[str], fills: Mapping[str, float]) -> np.ndarray:
    """Columns of numbers, float64 [N, D]; raises as `Columns.numbers`."""
    return _stack([columns.numbers(name, fills.get(name)) for name in names], columns.num_rows)


def _stack(columns: list[np.ndarray], num_rows: int) -> np.ndarray:
    return np.stack(columns, axis=1) if columns else np.zeros((num_rows, 0))
