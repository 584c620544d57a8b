import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.datamodules.value_names import names_of, number_names, warn_of_odd_names


def said(caplog, names):
    """The warnings about rows with these names."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        values, numbers = number_names("who", np.array(names, dtype=object))
        warn_of_odd_names("who", values, numbers)
    return caplog.messages


@given(st.lists(st.integers(0, 5), min_size=1) | st.lists(st.sampled_from("abc"), min_size=1))
def test_a_value_has_the_same_number_in_each_type_of_array(values):
    for array in (np.array(values), np.array(values, dtype=object), np.ma.array(values)):
        known, numbers = number_names("who", array)
        assert known == [*map(str, sorted(set(values)))]
        assert [known[number] for number in numbers] == [*map(str, values)]


def test_numbers_and_texts_have_no_order():
    with pytest.raises(ValueError, match="values of the types int, str; allowed: of one type"):
        number_names("who", np.array([1, "1"], dtype=object))


def test_numbers_from_0_are_no_names():
    assert (names_of([0, 1]), names_of(["0", "1"]), names_of([])) == ((), (), ())
    assert (names_of([1, 2]), names_of([0.0, 1.0])) == (("1", "2"), ("0.0", "1.0"))


@pytest.mark.parametrize(
    ("names", "odd"),
    [
        (["c1", " c1", "c1"], "' c1' in row 1 (the first is 0) is not 'c1'"),
        (["ILL", "ill", "ill"], "'ILL' in row 0 (the first is 0) is not 'ill'"),
        (["new  town", "new town", "new town"], "'new  town' in row 0 (the first is 0) is not"),
        (["7", "7.0", "7"], "'7.0' in row 1 (the first is 0) is not '7'"),
        (["a", "NA", "a"], "'NA' in row 1 (the first is 0) is not read as missing"),
        (["a", "?", "?"], "'?' in rows 1, 2 (the first is 0) is not read as missing"),
    ],
)
def test_names_that_may_be_mistakes_get_one_line(caplog, names, odd):
    (line,) = said(caplog, names)
    assert line.startswith("who: ")
    assert odd in line


def test_one_line_names_the_first_three_and_counts_the_others(caplog):
    (line,) = said(caplog, [name for odd in "abcde" for name in (odd, odd, f"{odd} ")])
    assert line.count("is not '") == 3
    assert "and 2 more such names" in line


@pytest.mark.parametrize(
    "names",
    [
        ["c1", "c2", "c10"],
        ["1_0", "10"],
        ["12345678901234567890", "12345678901234567891"],
        ["snan", "inf", "infinity"],
        [1, 2, 1],
        [0.5, 1.0],
        ["new town", "newtown"],
    ],
)
def test_other_names_get_none(caplog, names):
    assert said(caplog, names) == []
