"""The index that pandas writes beside the data is no input, and one line says so."""

import io

import numpy as np
import pandas as pd
import pytest
from own_reading import read_data

from flfast.datamodules.sources.tabular import Table
from flfast.zoo.datamodules.sources.series import Series

NAMES = dict.fromkeys(("numeric", "categorical", "owner", "is_test", "task"))
OPTIONS = {
    **NAMES,
    "targets": "y",
    "test_fraction": 0.0,
    "standardise": "none",
    "standardise_targets": False,
    "fill": None,
    "missing_indicator": False,
    "missing": "error",
    "seed": 0,
}
FRAME = pd.DataFrame({"x": np.linspace(0.5, 2, 6), "y": ["a"] * 3 + ["b"] * 3})
INDICES = {
    "numbers": range(6),
    "some numbers": [9, 3, 7, 40, 5, 0],
    "twice": [0, 1, 2, 0, 1, 2],
    "texts": [*"pqrstu"],
}


def written(frame, trips):
    """The text of a frame that was written and read again some times."""
    text = frame.to_csv()
    for _ in range(trips - 1):
        text = pd.read_csv(io.StringIO(text)).to_csv()
    return text


def said(caplog):
    return [line for line in caplog.messages if "index of a DataFrame" in line]


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("trips", [1, 2, 3])
def test_the_index_of_a_csv_file_is_no_input(tmp_path, caplog, index, trips):
    (tmp_path / "t.csv").write_text(written(FRAME.set_axis(index), trips))
    found = Table(path=str(tmp_path / "t.csv"), **OPTIONS).load()
    assert found.input_names == ("x",)
    (line,) = said(caplog)
    assert "t.csv: " in line and "name it in an option" in line


@pytest.mark.parametrize("index", [[9, 3, 7, 40, 5, 0], [*"pqrstu"]])
def test_the_index_of_a_parquet_file_is_no_input(tmp_path, caplog, index):
    FRAME.set_axis(index).to_parquet(tmp_path / "t.parquet")
    assert Table(path=str(tmp_path / "t.parquet"), **OPTIONS).load().input_names == ("x",)
    assert "__index_level_0__" in said(caplog)[0]


@pytest.mark.parametrize("role", ["numeric", "owner", "categorical"])
def test_an_index_that_is_named_is_used(tmp_path, caplog, role):
    (tmp_path / "t.csv").write_text(written(FRAME.set_axis([2, 2, 5, 2, 5, 5]), 1))
    value = "" if role == "owner" else [""]
    found = Table(path=str(tmp_path / "t.csv"), **OPTIONS | {role: value}).load()
    assert not said(caplog)
    if role == "owner":
        assert found.client_names == ("2", "5")
    else:
        assert found.input_names[-1].partition(":")[0] == ""


def test_a_column_without_a_name_that_is_not_the_first_is_an_input(tmp_path, caplog):
    (tmp_path / "t.csv").write_text("x,,y\n1,2,a\n3,4,b\n")
    assert Table(path=str(tmp_path / "t.csv"), **OPTIONS).load().input_names == ("x", "")
    assert not said(caplog)


def test_the_index_of_series_is_no_client(tmp_path, caplog):
    pd.DataFrame(np.random.default_rng(0).random((20, 2)), columns=["p", "q"]).to_csv(
        tmp_path / "t.csv"
    )
    options = dict.fromkeys(("time", "owner", "values", "targets"))
    options |= {"window": 2, "horizon": 1, "stride": 1, "season": 1, "test_fraction": 0.0}
    found = Series(path=str(tmp_path / "t.csv"), loss="mse", **options).load()
    assert found.client_names == ("p", "q") and len(said(caplog)) == 1


def test_a_frame_that_was_read_with_its_index_loses_it(caplog):
    frame = pd.read_csv(io.StringIO(written(FRAME, 2)))
    assert [*frame] == ["Unnamed: 0.1", "Unnamed: 0", "x", "y"]
    train, test = frame.iloc[::2], frame.iloc[1::2]
    found = read_data(train, test.drop(columns="Unnamed: 0"), target="y", client=None)
    assert found.input_shape == (1,)
    assert [line[:7] for line in said(caplog)] == ["data=: ", "test_da"]
    numbered = frame.assign(**{"Unnamed: 0": [1, 1, 2, 2, 3, 3]})
    named = read_data(numbered, None, target="y", client="Unnamed: 0")
    assert named.client_names == ("1", "2", "3")
