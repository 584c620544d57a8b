from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.datamodules.sources.table_files import Columns

TYPES = [
    *(pa.int8(), pa.uint8(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.bool_(), pa.decimal128(5, 2)),
]
MADE = {pa.bool_(): bool, pa.decimal128(5, 2): Decimal}


def column(values, kind, coded, parts):
    """A column in several parts, coded by a dictionary if that is asked for."""
    make = MADE.get(kind, float if pa.types.is_floating(kind) else int)
    array = pa.array([None if v is None else make(v) for v in values], kind)
    array = array.dictionary_encode() if coded else array
    table = pa.table({"x": pa.chunked_array([array[:parts], array[parts:]])})
    return Columns(table, "file"), [make(v) for v in values if v is not None]


@given(
    values=st.lists(st.integers(0, 100), min_size=1, max_size=9),
    kind=st.sampled_from(TYPES),
    coded=st.booleans(),
    parts=st.integers(0, 9),
)
def test_numbers_of_every_type_are_as_python_reads_them(values, kind, coded, parts):
    columns, objects = column(values, kind, coded and kind != pa.float16(), parts)
    numbers = columns.numbers("x")
    assert numbers.dtype == np.float64
    assert numbers.tolist() == [float(value) for value in objects]
    assert not columns.missing("x").any()


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_missing_numbers_of_every_type_are_missing(kind):
    columns, _ = column([1, None, 0], kind, coded=False, parts=2)
    assert columns.missing("x").tolist() == [False, True, False]
    with pytest.raises(ValueError, match="file: column x: 1 of 3 values are missing, in row 1 "):
        columns.numbers("x")


def test_numbers_are_read_without_making_objects(monkeypatch):
    columns = Columns(pa.table({"x": [1.5, 2.5]}), "file")
    monkeypatch.setattr(Columns, "values", None)
    assert columns.numbers("x").tolist() == [1.5, 2.5]


def test_nan_is_missing_and_infinity_is_refused():
    columns = Columns(pa.table({"x": [1.0, float("nan")], "y": [1.0, float("inf")]}), "file")
    assert columns.missing("x").tolist() == [False, True]
    with pytest.raises(ValueError, match="file: column y holds infinity in row 1 "):
        columns.numbers("y")
