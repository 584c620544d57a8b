from itertools import groupby

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flfast.zoo.datamodules.sources.pamap2 import ACTIVITIES, _periods, pamap2

SETTINGS = {
    "window": 4,
    "stride": 2,
    "scale": [10.0, 1.0, 50.0],
    "test_subjects": [],
    "test_fraction": 0.0,
}
# Columns of a unit: temperature, acceleration twice, gyroscope, magnetometer, orientation.
KINDS = ["t", *"aaa", *"bbb", *"ggg", *"mmm", *"oooo"]


@pytest.fixture
def write(tmp_path):
    """Write a subject's activities; the value of column c in row r is 1000 c + r."""

    def subject(number, activities, missing=()):
        (tmp_path / "Protocol").mkdir(exist_ok=True)
        table = 1000.0 * np.arange(54) + np.arange(len(activities))[:, None]
        table[:, 1] = activities
        table[::3, 2] = np.nan  # the heart rate is measured less often
        for row, column in missing:
            table[row, column] = np.nan
        path = tmp_path / "Protocol" / f"subject{number}.dat"
        np.savetxt(path, table, fmt="%.6g")
        return path

    return subject


@pytest.fixture
def load(tmp_path):
    return lambda **changes: pamap2(root=str(tmp_path), **SETTINGS | changes)


def test_windows_lie_within_periods_and_channels_are_those_of_the_units(write, load):
    write(102, [0, 0, *[24] * 7, 0, *[1] * 4])
    write(101, [*[4] * 5, *[7] * 3])
    examples = load()
    assert examples.inputs.shape == (4, 27, 4)
    assert examples.inputs.dtype == torch.float32
    assert examples.targets.tolist() == [ACTIVITIES.index(a) for a in (4, 24, 24, 1)]
    assert examples.owner.tolist() == [0, 1, 1, 1]
    assert examples.client_names == ("101", "102")
    assert examples.is_test is None
    columns = [
        3 + 17 * unit + KINDS.index(kind) + i
        for unit in range(3)
        for kind in "agm"
        for i in range(3)
    ]
    divisors = {"a": 10, "g": 1, "m": 50}
    kinds = [kind for _ in range(3) for kind in "agm" for _ in range(3)]
    rows = [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [10, 11, 12, 13]]
    expected = [
        [
            [(1000 * c + r) / divisors[k] for r in window]
            for c, k in zip(columns, kinds, strict=True)
        ]
        for window in rows
    ]
    assert torch.allclose(examples.inputs, torch.tensor(expected), rtol=1e-6)


def test_missing_values_are_interpolated_in_time(write, load):
    write(101, [1] * 8, missing=[(0, 4), (3, 4), (4, 4), (7, 4)])
    values = load(scale=[1.0, 1.0, 1.0]).inputs[:, 0]  # column 4, the first channel
    assert values.tolist() == [
        [4001, 4001, 4002, 4003],
        [4002, 4003, 4004, 4005],
        [4004, 4005, 4006, 4006],
    ]


def test_test_subjects_are_no_clients(write, load):
    for number in (105, 101, 109):
        write(number, [*[1] * 5, *[2] * 4])
    examples = load(test_subjects=[105], test_fraction=0.5)
    assert examples.is_test.tolist() == [False, False, True, True, False, False]
    assert examples.owner.tolist() == [0, 0, -1, -1, 1, 1]


def test_the_end_of_each_period_is_held_out_without_overlap(write, load):
    write(101, [*[1] * 20, *[2] * 20])
    examples = load(test_fraction=0.25, window=5, stride=1)
    is_test = torch.from_numpy(examples.is_test)
    rows = examples.inputs[:, 0] * 10 - 4000
    assert set(rows[~is_test].unique().tolist()) == {*range(15), *range(20, 35)}
    assert set(rows[is_test].unique().tolist()) == {*range(15, 20), *range(35, 40)}
    assert set(examples.owner.tolist()) == {0}


@given(st.lists(st.sampled_from([0, 1, 24, 9]), min_size=1, max_size=30), st.floats(0, 0.99))
def test_periods_divide_each_run_of_an_activity(activity, fraction):
    found = list(_periods(np.array(activity), fraction))
    position, expected = 0, []
    for value, run in groupby(activity):
        stop = position + len(list(run))
        expected += [(position, stop)] * (value in ACTIVITIES)
        position = stop
    assert [(a[0], b[1]) for a, b in zip(found[::2], found[1::2], strict=True)] == expected
    for (start, middle, first), (same, stop, second) in zip(found[::2], found[1::2], strict=True):
        assert (first, second, same) == (False, True, middle)
        assert abs(stop - middle - fraction * (stop - start)) <= 0.5


def test_missing_and_broken_files_are_named(write, load):
    with pytest.raises(ValueError, match=r"data\.root=\S+ has no Protocol/subject101\.dat"):
        load()
    path = write(101, [1] * 8)
    with pytest.raises(ValueError, match=r"data\.test_subjects=\[3\]; allowed: of 101"):
        load(test_subjects=[3])
    with pytest.raises(ValueError, match=r"data\.window=9: no training period"):
        load(window=9)
    with pytest.raises(ValueError, match=r"data\.scale=\[1\.0\] must have three values"):
        load(scale=[1.0])
    write(101, [1] * 8, missing=[(row, 40) for row in range(8)])
    with pytest.raises(ValueError, match=r"subject101\.dat: column 41 has no value"):
        load()
    for content, message in {"1 2 3\n": "has 3 columns; allowed: 54", "PK": "not a table"}.items():
        path.write_text(content)
        with pytest.raises(ValueError, match=rf"subject101\.dat.* {message}"):
            load()
