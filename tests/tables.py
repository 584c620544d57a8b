"""Reading and comparing the tables of runs."""

import pytest

from flfast.output.results.table import read_rows


def rows(folder):
    """Rows of a run's `metrics.csv`; row r is the state after round r."""
    return read_rows(folder / "metrics.csv")


def timeless(folder):
    """`rows` without columns that depend on time or the machine."""
    slow = ("time/", "train/samples_per_s", "monitor/")
    return [{k: v for k, v in row.items() if not k.startswith(slow)} for row in rows(folder)]


def assert_same_numbers(found, expected, *, rel=1e-5):
    """Compare the rows of two runs that may differ in the order of sums only."""
    for left, right in zip(found, expected, strict=True):
        for name in ("global/accuracy", "local/accuracy"):
            assert left[name] == right[name]
        assert float(left["global/loss"]) == pytest.approx(float(right["global/loss"]), rel=rel)
