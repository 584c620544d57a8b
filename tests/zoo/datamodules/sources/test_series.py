"""Series of tables: long and wide ones are the same, and mistakes are one line."""

import numpy as np
import pytest
import torch

from flfast.zoo.datamodules.sources.series import Series

pytest.importorskip("pyarrow")
OPTIONS = {
    "time": "time",
    "owner": None,
    "values": None,
    "targets": None,
    "window": 4,
    "horizon": 2,
    "stride": 1,
    "season": 1,
    "test_fraction": 0.4,
    "loss": "mse",
}
HOURS = [f"2024-03-01T{hour:02d}:00:00" for hour in range(20)]
RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(2, 20)).round(3).tolist()
WIDE = [("time", "a", "b"), *zip(HOURS, A, B, strict=True)]


def write(path, rows):
    path.write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return str(path)


def test_wide_and_long_tables_are_the_same_and_rows_of_clients_may_alternate(tmp_path):
    wide = Series(path=write(tmp_path / "wide.csv", WIDE), **OPTIONS).load()
    rows = [(t, name, v) for t, *own in WIDE[1:] for name, v in zip("ab", own, strict=True)]
    path = write(tmp_path / "long.csv", [("time", "who", "load"), *rows])
    found = Series(path=path, **OPTIONS | {"owner": "who"}).load()
    assert torch.equal(found.inputs, wide.inputs) and torch.equal(found.targets, wide.targets)
    assert found.client_names == wide.client_names == ("a", "b")
    assert found.input_names == ("load",)


def test_predicted_columns_come_first(tmp_path):
    rows = [(*WIDE[0], "who"), *((*row, "x") for row in WIDE[1:])]
    path = write(tmp_path / "t.csv", rows)
    found = Series(path=path, **OPTIONS | {"owner": "who", "targets": ["b"]}).load()
    assert found.input_names == ("b", "a")
    assert (found.num_classes, found.horizon, found.input_shape) == (2, 2, (2, 4))


def changed(row, column, value):
    rows = [list(own) for own in WIDE]
    rows[row][column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (changed(4, 0, HOURS[7]), {}, "data.time: times of the file do not rise by equal steps"),
        (WIDE[:5] + WIDE[6:], {}, "2024-03-01T05:00:00.000000 follows 2024-03-01T03:00"),
        ([WIDE[0], *WIDE[:0:-1]], {}, "do not rise by equal steps"),
        (changed(4, 0, "soon"), {}, "data.time=time:"),
        (changed(4, 1, ""), {}, "column a"),
        (changed(4, 1, "much"), {}, "column a"),
        (WIDE, {"time": "when"}, "data.time='when' is no column"),
        (WIDE, {"targets": ["a"]}, "data.targets=['a'] without data.owner"),
        (WIDE, {"window": 9}, "series a has 20 steps, 8 of them for testing"),
    ],
)
def test_mistakes_are_one_line(tmp_path, rows, options, message):
    with pytest.raises(ValueError) as error:
        Series(path=write(tmp_path / "t.csv", rows), **OPTIONS | options).load()
    assert message in str(error.value) and "\n" not in str(error.value)


def test_without_times_rows_are_in_order(tmp_path):
    path = write(tmp_path / "t.csv", changed(4, 0, HOURS[7]))
    found = Series(path=path, **OPTIONS | {"time": None, "values": ["a"]}).load()
    assert found.client_names == ("a",)
