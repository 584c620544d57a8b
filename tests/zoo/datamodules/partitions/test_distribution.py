import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flfast.zoo.datamodules.partitions.distribution import distribution


def split(path, labels, *, min_samples=1, seed=0):
    """Counts [K, C]."""
    owner = distribution(
        labels, path=str(path), min_samples=min_samples, rng=np.random.default_rng(seed)
    )
    counts = np.zeros((owner.max() + 1, labels.max() + 1), dtype=int)
    np.add.at(counts, (owner, labels), 1)
    return counts


def write(path, table, labels=None):
    header = ",".join(map(str, range(len(table[0])) if labels is None else labels))
    path.write_text("\n".join([header, *(",".join(map(repr, row)) for row in table)]))
    return path


@given(hnp.arrays(np.int64, (4, 3), elements=st.integers(0, 30)))
@settings(max_examples=25)
def test_counts_of_a_partition_come_back_exactly(tmp_path_factory, counts):
    counts[np.arange(4), np.arange(4) % 3] += 1  # nobody is empty, and no class
    path = write(tmp_path_factory.getbasetemp() / "table.csv", counts.tolist())
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(3), counts.sum(axis=0)))
    np.testing.assert_array_equal(split(path, labels), counts)


def test_only_the_ratios_of_a_column_count_and_the_header_names_classes(tmp_path):
    path = write(tmp_path / "table.csv", [[1e308, 0.0, 7], [1e308, 0.5, 7]], labels=[2, 0, 9])
    labels = np.repeat([0, 2], [10, 100])
    assert split(path, labels).tolist() == [[0, 0, 50], [10, 0, 50]]


def test_a_client_of_which_the_table_says_nothing_gets_the_minimum(tmp_path):
    path = write(tmp_path / "table.csv", [[1, 1], [0, 0]])
    labels = np.repeat([0, 1], [30, 20])
    assert split(path, labels, min_samples=5).sum(axis=1).tolist() == [45, 5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1\n1,1\n-1,2", r"path=.*, line 3: -1; allowed: numbers >= 0"),
        ("0,1\n1,nan", r"line 2: nan; allowed: numbers >= 0"),
        ("0,1\n1,x", r"line 2: x; allowed: numbers >= 0"),
        ("0,1\n1,2,3", r"line 2: has 3 values for 2 columns"),
        ("a,b\n1,2", r"line 1: label=a; allowed: an integer >= 0"),
        ("1,1\n1,2", r"line 1: has a label twice"),
        ("0,1", r"line 1: has no client; allowed: a row for each client"),
        ("0,2\n1,2", r"has no column of class 1; allowed: a column for each class .*0, 1"),
        ("0,1\n1,0\n2,0", r"gives class 1 to no client"),
        ("", r"line 1: is empty"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        split(path, np.repeat([0, 1], 10))


def test_more_clients_than_the_data_have_examples_for_are_refused(tmp_path):
    path = write(tmp_path / "table.csv", [[1, 1]] * 30)
    with pytest.raises(ValueError, match=r"min_samples=1 needs 30 examples for 30 clients"):
        split(path, np.repeat([0, 1], 10))
