import numpy as np
import pytest

from flfast.datamodules.partitions.natural import natural


def test_the_datas_clients_are_kept():
    owner = np.array([2, 0, 1, 1], dtype=np.int32)
    found = natural(np.zeros(4, dtype=int), owner=owner)
    assert found.tolist() == [2, 0, 1, 1]
    assert found.dtype == np.int64


def test_data_without_clients_are_refused():
    with pytest.raises(ValueError, match=r"data that names its clients, such as data=pfllib"):
        natural(np.zeros(4, dtype=int), owner=None)


@pytest.mark.parametrize("owner", [[-1, 0, 1, 2], [0, 1, 2, 4]])
def test_ids_that_are_no_client_numbers_are_refused(owner):
    with pytest.raises(ValueError, match=r"needs clients numbered 0, 1, .* for 4 examples"):
        natural(np.zeros(4, dtype=int), owner=np.array(owner))


def test_owners_of_other_examples_are_refused():
    with pytest.raises(ValueError, match=r"owner has shape \[3\], labels have \[4\]"):
        natural(np.zeros(4, dtype=int), owner=np.zeros(3, dtype=int))
