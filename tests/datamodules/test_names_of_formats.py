"""Owners and classes are names: as many and as written, from every format."""

import csv
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_reading import read_data
from torch.utils.data import Dataset

from flfast.datamodules.missing import missing_rows
from flfast.datamodules.sources import hf, npz, tabular
from flfast.datamodules.value_names import number_names
from flfast.zoo.datamodules.sources import conversations, series

SPELLINGS = [
    *("1.1", "1.10", "1.2", "001", "01", "1", "7", "7.0", "1e3", "10e2", "1000"),
    *("true", "TRUE", "True", "false", "0x1F", "31", "+1", "-2", "2024-01-31", "1_000"),
    *("12345678901234567890", "12345678901234567891", "9007199254740993", "9007199254740992"),
    *("inf", "infinity", "12:30", "x", " x"),
]
NAMES = st.lists(st.sampled_from(SPELLINGS), min_size=2, max_size=8, unique=True)

TABLE = {
    **dict.fromkeys(("numeric", "categorical", "owner", "is_test", "task")),
    "test_fraction": 0.0,
    "standardise": "all",
    "standardise_targets": True,
    "fill": None,
    "missing_indicator": False,
    "missing": "error",
    "seed": 0,
}
HF = {
    **dict.fromkeys(("name", "image_size", "task", "owner", "test_split")),
    "download": False,
    "inputs": ["x"],
    "train_split": "train",
    "test_fraction": 0.0,
    "tokenizer": "words",
    "vocabulary_size": 9,
    "max_tokens": 4,
    "channels": 3,
    "in_memory": True,
    "mean": [0.5],
    "std": [0.5],
    "missing": "error",
    "seed": 0,
}


def rows_of(names):
    """Twelve rows of each name, in turns: name, input, class, time."""
    return pd.DataFrame(
        {
            "who": pd.Series([*names] * 12, dtype=object),
            "x": np.sin(np.arange(12.0 * len(names))),
            "y": ["a", "b"] * (6 * len(names)),
        }
    )


def write(folder, frame, suffix):
    path = folder / f"rows{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path)
    elif suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False, quoting=csv.QUOTE_MINIMAL)
    return str(path)


def read_table(folder, names, suffix):
    path = write(folder, rows_of(names), suffix)
    by_owner = tabular.Table(path=path, targets="y", **TABLE | {"owner": "who"}).load()
    as_class = TABLE | {"task": "classification"}
    classes = tabular.Table(path=path, targets="who", **as_class).load().class_names
    as_category = TABLE | {"categorical": ["who"]}
    (_, category) = tabular.Table(path=path, targets="y", **as_category).load().input_names
    assert category == f"who: {', '.join(classes or map(str, range(len(names))))}"
    return by_owner, classes


def read_hf(folder, names, suffix):
    path = write(folder, rows_of(names), suffix)
    options = HF | {"cache_dir": str(folder / "cache")}
    by_owner = hf.Hf(path=path, targets="y", **options | {"owner": "who"}).load()
    classes = hf.Hf(path=path, targets="who", **options | {"task": "classification"}).load()
    return by_owner, classes.class_names


def read_series(folder, names, suffix):
    path = write(folder, rows_of(names).drop(columns="y"), suffix)
    options = {"time": None, "values": None, "targets": None, "window": 2, "horizon": 1}
    options |= {"stride": 1, "season": 1, "test_fraction": 0.0, "loss": "mse"}
    return series.Series(path=path, owner="who", **options).load(), None


def read_npz(folder, names, _):
    frame = rows_of(names)
    np.savez(
        folder / "a.npz",
        inputs=frame[["x"]].to_numpy(),
        targets=np.arange(len(frame)) % 2,
        owner=np.array(frame["who"].tolist()),
    )
    options = dict.fromkeys(("is_test", "num_classes", "mean", "std", "task"))
    options |= {"test_fraction": 0.0, "random_crop": 0, "random_flip": False, "seed": 0}
    root = str(folder / "a.npz")
    return npz.Npz(
        root=root, inputs="inputs", targets="targets", owner="owner", **options
    ).load(), None


def read_conversations(folder, names, _):
    lines = [{"who": n, "prompt": "a", "completion": "b"} for n in rows_of(names)["who"]]
    (folder / "c.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = {"tokenizer": "characters", "chat_template": "plain", "vocabulary_size": 9}
    options |= {"max_tokens": 9, "test_fraction": 0.0, "seed": 0}
    root = str(folder / "c.jsonl")
    return conversations.Instructions(root=root, client_column="who", **options).load(), None


def read_frame(_, names, suffix):
    frame = rows_of(names).astype({"who": "category" if suffix == "category" else object})
    classes = read_data(frame.astype({"who": "category"}), None, target="who", client=None)
    return read_data(frame, None, target="y", client="who"), classes.class_names


def read_arrays(_, names, kind):
    frame = rows_of(names)
    who = frame["who"].tolist()
    inputs, targets = torch.tensor(frame["x"])[:, None].float(), np.arange(len(frame)) % 2
    if kind == "dataset":
        triples = Triples(inputs, targets, who)
        return read_data(triples, None, target=None, client=None), None
    clients = {"list": who, "array": np.array(who), "objects": np.array(who, dtype=object)}[kind]
    return read_data((inputs, targets, clients), None, target=None, client=None), None


class Triples(Dataset):
    def __init__(self, *columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns[0])

    def __getitem__(self, index):
        return tuple(column[index] for column in self.columns)


READERS = [
    *[(read_table, suffix) for suffix in (".csv", ".csv.gz", ".parquet")],
    *[(read_series, suffix) for suffix in (".csv", ".parquet")],
    *[(read_frame, kind) for kind in ("object", "category")],
    *[(read_arrays, kind) for kind in ("list", "array", "objects", "dataset")],
    *[(read_npz, ".npz"), (read_conversations, ".jsonl")],
]


def check(read, suffix, folder, names):
    """As many clients and classes as names, shown as written; each row keeps its own."""
    found, classes = read(folder, names, suffix)
    assert sorted(found.client_names) == sorted(names)
    rows = [found.client_names[k] for k in found.owner]
    assert rows == ([*names] * 12 if read is not read_series else sorted(rows, key=rows.index))
    assert classes is None or sorted(classes) == sorted(names)


@pytest.mark.parametrize(("read", "suffix"), READERS)
@settings(max_examples=6, deadline=None)
@given(names=NAMES)
def test_there_are_as_many_clients_and_classes_as_names(tmp_path_factory, read, suffix, names):
    check(read, suffix, tmp_path_factory.mktemp("names"), names)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_names_of_a_dataset_of_the_library_datasets_are_as_written(tmp_path, suffix):
    check(read_hf, suffix, tmp_path, ["1.1", "1.10", "01", "001", "1e3", "1000"])


VALUES = [
    (np.array([10, 9, -2]), ["-2", "9", "10"]),
    (np.array([2**64 - 1, 2**64 - 2], dtype=np.uint64), [str(2**64 - 2), str(2**64 - 1)]),
    (np.array([2**53 + 1, 2**53]), [str(2**53), str(2**53 + 1)]),
    (np.array([True, False]), ["False", "True"]),
    (np.array([7.0, np.nan, 10.0]), ["7", "10"]),  # pandas' integers beside a missing one
    (np.array([7.5, 7.0]), ["7", "7.5"]),
    (np.array([0.1, 0.2], dtype=np.float32), ["0.1", "0.2"]),
    (np.array([Decimal("1.10"), Decimal("1.20")], dtype=object), ["1.10", "1.20"]),
]


@pytest.mark.parametrize(("values", "names"), VALUES, ids=lambda value: str(value))
def test_values_of_every_type_have_an_exact_text(tmp_path, values, names):
    given_values = values[~missing_rows(values)]
    for array in (given_values, np.array([*given_values], dtype=object)):
        known, numbers = number_names("who", array)
        assert known == names
        assert len(set(numbers)) == len(names)
    frame = pd.DataFrame({"who": [*values] * 12, "x": 0.5, "y": ["a", "b"] * (6 * len(values))})
    frame["who"] = frame["who"].astype(values.dtype)
    frame.to_parquet(tmp_path / "rows.parquet")
    options = TABLE | {"owner": "who", "missing": "drop", "targets": "y"}
    made = tabular.Table(path=str(tmp_path / "rows.parquet"), **options).load()
    assert made.client_names == (*names,)
    found = read_data(frame.dropna(), None, target="y", client="who")
    assert found.client_names == (*names,)


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "frame"])
def test_a_float_that_may_be_several_integers_is_no_name(tmp_path, kind):
    frame = rows_of([2.0**53, 3.0]).astype({"who": float})
    with pytest.raises(ValueError, match="float 9007199254740992 may stand for several integers"):
        if kind == "frame":
            read_data(frame, None, target="y", client="who")
        elif kind == "jsonl":  # whose reader makes floats of integers of 20 digits
            rows = [{"who": 9007199254740992.0, "x": 1.5, "y": "a"}] * 3
            (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
            path, options = str(tmp_path / "rows.jsonl"), HF | {"cache_dir": str(tmp_path / "c")}
            hf.Hf(path=path, targets="y", **options | {"owner": "who"}).load()
        elif kind == "csv":
            number_names("who", np.array([2.0**53]))
        else:
            path = write(tmp_path, frame, ".parquet")
            tabular.Table(path=path, targets="y", **TABLE | {"owner": "who"}).load()


def test_numbers_and_texts_in_one_column_are_refused():
    for clients in ([1, "1"] * 4, (True, "True") * 4):
        data = (torch.zeros(8, 1), torch.arange(8) % 2, clients)
        with pytest.raises(ValueError, match=r"clients: values of the types"):
            read_data(data, None, target=None, client=None)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_minus_1_names_nobody_in_every_format(tmp_path, suffix):
    path = write(tmp_path, rows_of(["-1", "2"]), suffix)
    with pytest.raises(ValueError, match=r"data\.owner=who: 12 of 24 values are missing"):
        tabular.Table(path=path, targets="y", **TABLE | {"owner": "who"}).load()


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@settings(max_examples=8, deadline=None)
@given(
    yes=st.sampled_from(["true", "TRUE", "True", "1", "test", " Test"]),
    no=st.sampled_from(["false", "False", "0", "train"]),
    odd=st.sampled_from([None, "yes", "2", "1.0", "t"]),
)
def test_marks_of_test_rows_are_those_of_one_list(tmp_path_factory, suffix, yes, no, odd):
    folder = tmp_path_factory.mktemp("marks")
    frame = rows_of(["a", "b", "c"]).assign(part=[yes, no, odd or no] * 12)

    def read():
        if suffix == ".npz":
            arrays = {"inputs": frame[["x"]].to_numpy(), "targets": np.arange(36) % 2}
            np.savez(folder / "a.npz", **arrays, is_test=np.array(frame["part"].tolist()))
            options = dict.fromkeys(("owner", "num_classes", "mean", "std", "task"))
            options |= {"test_fraction": 0, "random_crop": 0, "random_flip": False, "seed": 0}
            options |= {"inputs": "inputs", "targets": "targets", "is_test": "is_test"}
            return npz.Npz(root=str(folder / "a.npz"), **options).load()
        path = write(folder, frame, suffix)
        return tabular.Table(path=path, targets="y", **TABLE | {"is_test": "part"}).load()

    if odd is None:
        assert read().is_test.tolist() == [True, False, False] * 12
    else:
        with pytest.raises(
            ValueError, match=rf"data.is_test=.* holds \['{odd}'\]; allowed, in any"
        ):
            read()
