import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.datamodules.value_names import number_clients

ROWS = st.lists(st.tuples(st.sampled_from(["b", "aa", "c", "d"]), st.booleans()), max_size=15)


@given(ROWS)
def test_names_with_training_examples_are_numbered_in_order_without_gaps(rows):
    names = np.array([name for name, _ in rows], dtype=str)
    is_test = np.array([test for _, test in rows], dtype=bool)
    trained = sorted({name for name, test in rows if not test})
    numbers, found = number_clients(names, is_test, where="who")
    assert found == tuple(trained)
    assert [trained[n] if n >= 0 else None for n in numbers] == [
        name if name in trained else None for name in names
    ]
    assert numbers.dtype == np.int64


@given(st.lists(st.integers(0, 9), min_size=1))
def test_without_a_test_set_everyone_is_a_client(names):
    numbers, found = number_clients(np.array(names), None, where="who")
    ordered = sorted(set(names))
    assert found == (() if ordered == [*range(len(ordered))] else tuple(map(str, ordered)))
    assert [sorted(set(names))[n] for n in numbers] == names


def test_names_of_two_types_are_refused_by_their_key():
    with pytest.raises(ValueError, match="who: values of the types int, str; allowed"):
        number_clients([1, "a"], None, where="who")
