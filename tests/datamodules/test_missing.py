"""Missing is missing: for every source, role of a column, and kind of missing value."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from campaign import examples as num_examples
from hypothesis import given
from hypothesis import strategies as st
from own_reading import read_data
from row_sources import read_hf, read_table
from sampling import rotating

import flfast
from flfast.datamodules.missing import missing_owners, missing_rows
from flfast.datamodules.sources.npz import Npz
from flfast.datamodules.value_names import number_clients

NUM = 12
COLUMNS = {
    "who": list("bca") * 4,
    "x": [float(i) for i in range(NUM)],
    "town": ["Ulm", "Bonn"] * 6,
    "y": ["p", "q", "p"] * 4,
    "part": ["train"] * 9 + ["test"] * 3,
}
MISSING = {
    "None": None,
    "NaN": float("nan"),
    "NaT": pd.NaT,
    "NA": pd.NA,
    "empty": "",
    "blank": " ",
}
KINDS = st.sampled_from(sorted(MISSING))
ROWS = st.sets(st.integers(0, NUM - 1), min_size=1, max_size=2)


def lacking(role, rows, kind):
    frame = pd.DataFrame(COLUMNS)
    value = MISSING[kind] if role != "x" else None
    frame[role] = [value if row in rows else old for row, old in enumerate(frame[role])]
    return frame


def same(one, other):
    for name in ("inputs", "targets"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0)
    np.testing.assert_array_equal(one.owner, other.owner)
    np.testing.assert_array_equal(one.is_test, other.is_test)


@pytest.mark.parametrize(
    ("suffix", "role"),
    rotating([".csv", ".csv.gz", ".parquet"], ["who", "x", "town", "y", "part"], every=3),
)
@given(rows=ROWS, kind=KINDS)
@num_examples(8)
def test_a_table_with_a_missing_value_is_refused_or_loses_its_rows(
    tmp_path_factory, suffix, role, rows, kind
):
    path = tmp_path_factory.mktemp("table") / f"table{suffix}"
    write = (
        pd.DataFrame.to_parquet
        if suffix == ".parquet"
        else partial(pd.DataFrame.to_csv, index=False)
    )
    frame = lacking(role, rows, kind)
    write(frame, path)
    refused = rf"{role}: {len(rows)} of 12 .* in rows? {', '.join(map(str, sorted(rows)))} "
    with pytest.raises(ValueError, match=refused):
        read_table(path)
    dropped = read_table(path, missing="drop")
    if role == "town":
        kept = read_table(path, missing="category")
        assert (kept.inputs[:, 1] == 0).nonzero().flatten().tolist() == sorted(rows)
    write(pd.DataFrame(COLUMNS).drop(index=sorted(rows)), path)
    same(dropped, read_table(path))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(("role", "kind"), [("who", "None"), ("y", "blank"), ("x", "None")])
def test_a_dataset_with_a_missing_value_is_refused_or_loses_its_rows(tmp_path, suffix, role, kind):
    path, whole = tmp_path / f"rows{suffix}", tmp_path / f"whole{suffix}"
    write = pd.DataFrame.to_parquet if suffix == ".parquet" else partial(pd.DataFrame.to_csv)
    write(lacking(role, {0, 7}, kind), path, index=False)
    write(pd.DataFrame(COLUMNS).drop(index=[0, 7]), whole, index=False)
    with pytest.raises(ValueError, match=rf"={role}: 2 of 12 .* in rows 0, 7 .*data.missing=drop"):
        read_hf(path)
    dropped, expected = read_hf(path, "drop"), read_hf(whole)
    torch.testing.assert_close(dropped.inputs, expected.inputs)
    torch.testing.assert_close(dropped.targets, expected.targets)
    np.testing.assert_array_equal(dropped.owner, expected.owner)


@pytest.mark.parametrize(
    "owner",
    [np.where(np.arange(NUM) == 5, -1, 3), np.where(np.arange(NUM) == 5, "", "a")],
    ids=["-1", "empty"],
)
def test_arrays_with_a_missing_owner_are_refused(tmp_path, owner):
    arrays = {"inputs": np.zeros((NUM, 2), np.float32), "targets": np.arange(NUM) % 2}
    options = dict.fromkeys(("num_classes", "mean", "std", "task"))
    options |= {
        "inputs": "inputs",
        "targets": "targets",
        "owner": "auto",
        "is_test": "auto",
    }
    options |= {"random_crop": 0, "random_flip": False, "seed": 0, "test_fraction": 0.5}
    np.savez(tmp_path / "a.npz", **arrays, owner=owner)
    with pytest.raises(ValueError, match=r"owner.*: 1 of 12 values are missing, in row 5 "):
        Npz(root=str(tmp_path / "a.npz"), **options).load()
    np.savez(tmp_path / "a.npz", **arrays, owner=owner, is_test=np.arange(NUM) == 4)
    with pytest.raises(ValueError, match=r"owner.*: 1 of 12 values are missing, in row 5 "):
        Npz(root=str(tmp_path / "a.npz"), **options).load()


@pytest.mark.parametrize("role", ["who", "x", "y"])
@given(rows=ROWS, kind=KINDS)
@num_examples(5)
def test_a_frame_with_a_missing_value_is_refused(role, rows, kind):
    frame = lacking(role, rows, kind)[["who", "x", "y"]]
    frame["y"] = [{"p": 0, "q": 1}.get(label, label) for label in frame["y"]]
    where = {"who": "the clients", "x": "column x", "y": "column y"}[role]
    message = (
        rf"data=: {where}: {len(rows)} of 12 .* in rows? {', '.join(map(str, sorted(rows)))} "
    )
    with pytest.raises(flfast.ConfigError, match=message):
        read_data(frame, None, target="y", client="who")


@pytest.mark.parametrize(
    "clients",
    [
        [0, None] * 3,
        [0.0, float("nan")] * 3,
        [0, -1] * 3,
        np.ma.array([0, 1] * 3, mask=[0, 1] * 3),
        torch.tensor([0, -1] * 3),
    ],
    ids=["None", "NaN", "-1", "masked", "tensor"],
)
def test_own_arrays_with_a_missing_client_are_refused(clients):
    inputs, targets = np.zeros((6, 2), np.float32), np.array([0, 1] * 3)
    with pytest.raises(flfast.ConfigError, match=r"clients: 3 of 6 .* in rows 1, 3, 5 "):
        read_data((inputs, targets, clients), None, target=None, client=None)
    masked = np.ma.array(targets, mask=[0, 1] * 3)
    with pytest.raises(flfast.ConfigError, match=r"targets: 3 of 6 .* in rows 1, 3, 5 "):
        read_data((inputs, masked), None, target=None, client=None)
    masked = np.ma.array(inputs, mask=[[0, 0], [1, 0]] * 3)
    with pytest.raises(flfast.ConfigError, match=r"inputs: 3 of 6 .* in rows 1, 3, 5 "):
        read_data((masked, targets), None, target=None, client=None)


def test_a_test_set_may_lack_all_owners_and_is_then_central():
    is_test = np.array([False, False, True, True])
    owner, _ = number_clients(["b", "a", None, ""], is_test, where="who")
    assert owner.tolist() == [1, 0, -1, -1]
    with pytest.raises(ValueError, match=r"who: 1 of 4 values are missing, in row 3 "):
        number_clients(["b", "a", "a", None], is_test, where="who")


def test_values_are_missing_in_arrays_of_every_type():
    given_values = [1, "a", 0.0, False, b"x", *MISSING.values(), np.ma.masked, b""]
    assert missing_rows(given_values).tolist() == [False] * 5 + [True] * 8
    assert missing_rows(np.array([[1, np.nan], [1, 2]])).tolist() == [True, False]
    assert missing_rows(np.array(["2020", "NaT"], "datetime64[D]")).tolist() == [False, True]
    for names in ([3, -1], ["3", "-1"], ["a", "-1"], ["a", -1], np.array([3.0, -1.0])):
        assert missing_owners(names).tolist() == [False, True]
    assert missing_owners(np.array(["a", "-1"])).tolist() == [False, True]
    assert not missing_rows(np.array([-1])).any()
