import gzip
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import csv, parquet

from flfast.datamodules.sources.tabular import Table

SETTINGS = {
    "targets": "target",
    "numeric": None,
    "categorical": None,
    "owner": None,
    "is_test": None,
    "test_fraction": 0.0,
    "standardise": "none",
    "standardise_targets": False,
    "missing": "error",
    "fill": None,
    "missing_indicator": False,
    "task": None,
    "seed": 0,
}
HOUSES = {
    "rooms": [1, 2, 3, 4, 5, 6],
    "town": ["Ulm", "Bonn", "Ulm", "Trier", "Aue", "Ulm"],
    "area": [10.0, 20.0, 30.0, 40.0, 50.0, 60.0],
    "agent": ["x", "x", "y", "y", "z", "y"],
    "part": ["train", "train", "train", "test", "test", "train"],
    "target": [1.5, 2.5, 3.5, 4.5, 5.5, 6.5],
}
USED = {"numeric": ["rooms", "area"], "categorical": ["town"]}


@pytest.fixture
def write(tmp_path):
    def write(suffix=".csv", **columns):
        path, content = tmp_path / f"houses{suffix}", pa.table(columns)
        (csv.write_csv if suffix == ".csv" else parquet.write_table)(content, path)
        return str(path)

    return write


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_numbers_come_first_and_categories_are_codes(write, suffix):
    # A missing value comes first.
    columns = HOUSES | {"town": [None if town == "Aue" else town for town in HOUSES["town"]]}
    options = SETTINGS | USED | {"missing": "category"}
    examples = Table(path=write(suffix, **columns), **options).load()
    assert examples.inputs.dtype == torch.float32
    assert examples.inputs[:, 0].tolist() == HOUSES["rooms"]
    assert examples.inputs[:, 1].tolist() == HOUSES["area"]
    assert examples.inputs[:, 2].tolist() == [3, 1, 3, 2, 0, 3]
    assert examples.categories == (4,)
    assert examples.input_shape == (3,)
    assert (examples.task, examples.num_classes) == ("regression", 1)
    assert examples.targets.squeeze(1).tolist() == HOUSES["target"]


def test_all_columns_are_used_by_their_type(write):
    examples = Table(
        path=write(**HOUSES), **SETTINGS | {"is_test": "part", "owner": "agent"}
    ).load()
    assert examples.inputs.shape == (6, 3)
    assert examples.categories == (4,)
    only = Table(
        path=write(**HOUSES), **SETTINGS | {"numeric": ["area"], "categorical": []}
    ).load()
    assert only.inputs.squeeze(1).tolist() == HOUSES["area"]
    assert only.categories == ()
    rooms = Table(path=write(**HOUSES), **SETTINGS | {"categorical": ["rooms"]}).load()
    assert rooms.inputs[:, 0].tolist() == HOUSES["area"]
    assert rooms.inputs[:, 1].tolist() == [0, 1, 2, 3, 4, 5]


def test_owners_are_numbered_and_strangers_have_only_tests(write):
    options = SETTINGS | USED | {"owner": "agent", "is_test": "part", "standardise": "client"}
    examples = Table(path=write(**HOUSES), **options).load()
    assert examples.is_test.tolist() == [False, False, False, True, True, False]
    assert examples.owner.tolist() == [0, 0, 1, 1, -1, 1]
    assert examples.inputs[:2, 0].tolist() == [-1, 1]
    assert examples.inputs[[2, 5], 0].tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("targets", "task", "expected", "values"),
    [
        ([3, 7, 3, 9, 9, 9], None, "classification", [0, 1, 0, 2, 2, 2]),
        (["b", "a", "b", "a", "a", "a"], None, "classification", [1, 0, 1, 0, 0, 0]),
        ([True, False] * 3, None, "classification", [1, 0] * 3),
        ([3, 7, 3, 9, 9, 9], "regression", "regression", [[3], [7], [3], [9], [9], [9]]),
        ([0, 1] * 3, "multilabel", "multilabel", [[0], [1]] * 3),
        ([2.5, 1.0] * 3, "classification", "classification", [1, 0] * 3),
    ],
)
def test_the_task_follows_from_the_targets(write, targets, task, expected, values):
    path = write(**HOUSES | {"target": targets})
    examples = Table(path=path, **SETTINGS | USED | {"task": task}).load()
    assert examples.task == expected
    assert examples.targets.tolist() == values


def test_several_targets(write):
    labels = {"a": [0, 1, 1, 0, 1, 0], "b": [1, 1, 0, 0, 0, 0]}
    options = SETTINGS | USED | {"targets": ["a", "b"]}
    examples = Table(path=write(**HOUSES | labels), **options | {"task": "multilabel"}).load()
    assert examples.targets.tolist() == [list(row) for row in zip(*labels.values(), strict=True)]
    numbers = Table(
        path=write(**HOUSES),
        **SETTINGS | {"targets": ["area", "target"], "numeric": ["rooms"], "categorical": []},
    ).load()
    assert (numbers.task, numbers.num_classes) == ("regression", 2)


def test_times_and_events(write):
    columns = {"T": [5, 0, 3, 9, 2, 7], "E": [1, 0, 1, 0, 0, 1]}
    options = SETTINGS | USED | {"targets": ["T", "E"], "task": "survival"}
    examples = Table(path=write(**HOUSES | columns), **options).load()
    assert (examples.task, examples.num_classes) == ("survival", 1)
    assert examples.targets.T.tolist() == [columns["T"], columns["E"]]
    for targets, message in (
        ("T", r"task=survival has two columns of targets"),
        (["E", "T"], r"data.targets=\['E', 'T'\]: the event of example 0 is 5; allowed: 0"),
        (["T", "agent"], "column agent holds text, such as 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            Table(path=write(**HOUSES | columns), **options | {"targets": targets}).load()


def test_statistics_do_not_know_the_test_rows(write):
    options = SETTINGS | USED | {"is_test": "part", "standardise": "all"}
    options["standardise_targets"] = True
    before = Table(path=write(**HOUSES), **options).load()
    changed = HOUSES | {"area": [10.0, 20.0, 30.0, 999.0, 999.0, 60.0]}
    after = Table(path=write(**changed), **options).load()
    train = ~before.is_test
    assert torch.equal(before.inputs[train], after.inputs[train])
    assert before.targets[train].mean().item() == pytest.approx(0, abs=1e-6)
    assert before.inputs[train][:, :2].mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)


def test_a_drawn_test_set_takes_a_share_of_every_client(write):
    rows = {"x": range(40), "who": ["a"] * 10 + ["b"] * 30, "target": [0.5] * 40}
    path = write(**{name: list(values) for name, values in rows.items()})
    examples = Table(path=path, **SETTINGS | {"owner": "who", "test_fraction": 0.2}).load()
    assert np.bincount(examples.owner[examples.is_test]).tolist() == [2, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": "price"}, r"data.targets='price' is no column of .*allowed: rooms, town"),
        ({"numeric": ["room"]}, "data.numeric='room' is no column"),
        ({"owner": "who"}, "data.owner='who' is no column"),
        ({"is_test": "who"}, "data.is_test='who' is no column"),
        ({"is_test": "who", "owner": "agent"}, "data.is_test='who' is no column"),
        ({"is_test": "agent"}, r"data.is_test=agent holds \['x', 'y', 'z'\]; allowed"),
        ({"numeric": ["town"]}, "column town holds text, such as 'Ulm'"),
        ({"numeric": ["rooms"], "categorical": ["rooms"]}, r"both name \['rooms'\]"),
        ({"numeric": ["target"]}, r"name \['target'\], which data.targets"),
        ({"numeric": ["rooms", "rooms"]}, "data.numeric names 'rooms' twice"),
        ({"categorical": ["town", "town"]}, "data.categorical names 'town' twice"),
        ({"targets": ["area", "area"]}, "data.targets names 'area' twice"),
        ({"numeric": [], "categorical": []}, "leave no column as input"),
        ({"standardise": "client"}, "data.standardise=client needs data.owner"),
        ({"targets": [], "numeric": [], "missing": "category"}, r"data.targets=\[\] names no col"),
        ({"targets": []}, r"data.targets=\[\] names no column"),
        ({"targets": ["rooms", "agent"]}, "a classification has one column of targets"),
        ({"targets": "id"}, "data.targets=id has 101 different integers; say task=reg"),
        ({"task": "language"}, r"task=language with data.targets=\['target'\]; allowed: class"),
        ({"task": "multilabel"}, "must be 0 or 1"),
        ({"targets": "agent", "task": "regression"}, "column agent holds text"),
    ],
)
def test_options_that_do_not_fit_are_refused(write, changes, message):
    many = {name: (values * 17)[:101] for name, values in HOUSES.items()}
    path = write(**(HOUSES if "id" not in changes.values() else many | {"id": range(101)}))
    with pytest.raises(ValueError, match=message):
        Table(path=path, **SETTINGS | changes).load()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"rooms": [1, None, 3, 4, 5, 6]}, "data.numeric=rooms: 1 of 6 .* in row 1 .*; fill them"),
        (
            {"area": [1.0, float("nan"), 3.0, 4.0, 5.0, 6.0]},
            "data.numeric=area: 1 of 6 .* in row 1 ",
        ),
        ({"target": [None, "a", "a", "b", "b", "b"]}, "data.targets=target: 1 of 6 .* in row 0 "),
        ({"rooms": [[1]] * 6}, "column rooms has the type list<.*; allowed: numbers and text"),
    ],
)
def test_values_that_do_not_fit_are_refused(write, columns, message):
    with pytest.raises(ValueError, match=message):
        Table(path=write(".parquet", **HOUSES | columns), **SETTINGS | {"owner": "agent"}).load()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "a,b\n1,2\n3\n", "cannot be read as a table"),
        ("a.csv", "", "cannot be read as a table"),
        ("a.csv", "a,target\n", "has no rows; columns: a, target"),
        ("a.csv", "a,a,target\n1,2,3\n", "two columns of one name"),
        ("a.parquet", "a,b\n", "cannot be read as a table"),
        ("a.csv", "gr\xf6\xdfe,target\n1,2\n", "cannot be read as a table: 'utf-8' codec"),
        ("a.xlsx", "a,b\n", r"must end in \.csv"),
    ],
)
def test_files_that_are_no_tables_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=message) as caught:
        Table(path=str(tmp_path / name), **SETTINGS).load()
    assert "data.path=" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('a,target\n1,x\n2,"y\n3,z\n4,"w\n5,v\n', 3),
        ('a,target\n1,x\n2,y\n3,"z\n', 4),
        ('a,target\n"1"2,x\n', 2),
    ],
    ids=["closed by another", "never closed", "closed too early"],
)
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_quotes_that_do_not_pair_up_are_refused(tmp_path, content, line, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(content.encode()) if suffix == ".csv.gz" else content.encode())
    with pytest.raises(ValueError, match=rf"data.path=.*a\.csv.*: line {line}: .*quote"):
        Table(path=str(path), **SETTINGS).load()


def test_quoted_values_may_have_line_breaks_commas_and_quotes(tmp_path):
    quoted = 'a,b,target\n1,"x ""y"", z",0\n2,"line\nbreak",1\n3,5" pipe,1\n'
    (tmp_path / "a.csv").write_text(quoted)
    examples = Table(path=str(tmp_path / "a.csv"), **SETTINGS).load()
    assert examples.categories == (3,)
    assert examples.inputs[:, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize("odd", ["?", "1,234", "12 EUR", "3,5"])
@pytest.mark.parametrize("column", ["area", "target"])
def test_a_column_of_numbers_with_an_odd_one_is_no_column_of_categories(write, odd, column):
    values = ["1.5", "2", odd, "4e3", "5", "6"]
    path = write(**HOUSES | {column: values})
    hint = {"area": r"say data.categorical=\[area, ...\]", "target": "say task=classification"}
    with pytest.raises(ValueError, match=rf"column {column} .*'{re.escape(odd)}' in row 2 "):
        Table(path=path, **SETTINGS | {"owner": "agent"}).load()
    with pytest.raises(ValueError, match=hint[column]):
        Table(path=path, **SETTINGS | {"owner": "agent"}).load()
    said = {"categorical": ["town", "part", column]} if column == "area" else {}
    said |= {"task": "classification"} if column == "target" else {}
    assert len(Table(path=path, **SETTINGS | {"owner": "agent"} | said).load().targets) == 6


@pytest.mark.parametrize("column", ["area", "target"])
@pytest.mark.parametrize("value", [1e300, -1e300, 1e30, 1e12])
@pytest.mark.parametrize("is_test", [None, "part"])
def test_a_value_that_hides_all_others_is_refused(write, column, value, is_test):
    row = 4 if is_test and abs(value) > 1e100 else 1
    columns = {name: list(values) for name, values in HOUSES.items()}
    columns[column][row] = value
    options = SETTINGS | USED | {"standardise": "all", "standardise_targets": True}
    with pytest.raises(ValueError, match=rf"column {column}: the value \S+ in row {row} "):
        Table(path=write(**columns), **options | {"is_test": is_test}).load()


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_numbers_of_any_scale_are_standardised_alike(write, scale):
    options = SETTINGS | USED | {"standardise": "all", "standardise_targets": True}
    plain = Table(path=write(".parquet", **HOUSES), **options).load()
    columns = {"target": np.array(HOUSES["target"]) * scale}
    scaled = Table(path=write(".parquet", **HOUSES | columns), **options).load()
    torch.testing.assert_close(plain.targets, scaled.targets, rtol=1e-6, atol=1e-6)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"data.path=.*none.csv cannot be read as a table"):
        Table(path=str(tmp_path / "none.csv"), **SETTINGS).load()


@pytest.mark.parametrize(
    ("name", "task", "shape"),
    [("diabetes", "regression", (442, 10)), ("breast_cancer", "classification", (569, 30))],
)
def test_real_tables_load_as_they_are(write, name, task, shape):
    from sklearn import datasets

    data = getattr(datasets, f"load_{name}")()
    columns = dict(zip(map(str, data.feature_names), data.data.T, strict=True))
    path = write(".parquet", **columns, target=data.target)
    examples = Table(path=path, **SETTINGS).load()
    assert examples.task == task
    assert tuple(examples.inputs.shape) == shape
    np.testing.assert_array_equal(examples.inputs, data.data.astype(np.float32))
    np.testing.assert_array_equal(examples.targets.numpy().ravel(), data.target)


@pytest.mark.slow
def test_rows_with_categories_train_by_client(write, flfast_run):
    rng = np.random.default_rng(0)
    town = rng.choice(["Ulm", "Bonn", "Trier"], 300)
    columns = {"town": town, "area": rng.random(300), "agent": rng.choice(list("xyz"), 300)}
    path = write(**columns, target=np.where(town == "Bonn", "cheap", "dear"))
    folder = flfast_run(
        *("data=table", f"data.path={path}", "data.owner=agent", "partition=natural"),
        *("data.standardise=client", "model=tabular_mlp", "rounds=3", "callbacks=none"),
    )
    last = (folder / "metrics.csv").read_text().splitlines()
    accuracy = dict(zip(last[0].split(","), last[-1].split(","), strict=True))["global/accuracy"]
    assert float(accuracy) == 1


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("option", "column", "odd"),
    [("targets", "target", "ILL"), ("owner", "agent", " y"), ("categorical", "town", "ulm")],
)
def test_an_odd_name_gets_one_line_and_is_a_name_of_its_own(
    write, caplog, suffix, option, column, odd
):
    houses = HOUSES | {"target": ["ill", "ill", "well", "ill", "well", "well"]}
    options = SETTINGS | USED | {"owner": "agent"}
    clean = Table(path=write(suffix, **houses), **options).load()
    assert not _warnings(caplog)
    values = list(houses[column])
    row = [value.lower() for value in values].index(odd.strip().lower())
    values[row] = odd
    examples = Table(path=write(suffix, **houses | {column: values}), **options).load()
    (line,) = _warnings(caplog)
    assert line.startswith(f"data.{option}={column}: {odd!r} in row {row} (the first is 0) is not")
    num = {
        "targets": lambda found: found.num_classes,
        "owner": lambda found: len(found.client_names),
        "categorical": lambda found: found.categories[0],
    }[option]
    assert num(examples) == num(clean) + 1


@pytest.mark.parametrize("by", ["mean", "median", "constant"])
@pytest.mark.parametrize("indicates", [False, True])
def test_missing_numbers_are_filled_in_as_scikit_learn_does(tmp_path, by, indicates):
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    values = rng.normal(3, 2, (60, 3))
    values[rng.random((60, 3)) < 0.2] = np.nan
    values[:, 2] = np.arange(60)  # complete
    is_test = np.arange(60) % 4 == 0
    frame = pd.DataFrame(values, columns=["a", "b", "c"])
    frame["y"], frame["part"] = np.arange(60) % 2, np.where(is_test, "test", "train")
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = SETTINGS | {"targets": "y", "is_test": "part", "standardise": "all", "missing": by}
    options |= {"fill": -1.5 if by == "constant" else None, "missing_indicator": indicates}
    found = Table(path=str(tmp_path / "t.csv"), **options).load()
    strategy = {"strategy": by, "fill_value": -1.5}
    steps = make_pipeline(SimpleImputer(**strategy), StandardScaler()).fit(values[~is_test])
    expected = steps.transform(values)
    if indicates:
        expected = np.column_stack([expected, np.isnan(values[:, :2])])
    np.testing.assert_allclose(found.inputs, expected, rtol=1e-5, atol=1e-6)
    assert len(found.input_names) == found.inputs.shape[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fill": 1.0}, "data.fill=1 with data.missing=error: no number is filled in"),
        ({"missing_indicator": True}, "data.missing_indicator=true with data.missing=error"),
        ({"missing": "mean", "fill": 1.0}, r"data.missing=mean data.fill=1.0: a constant is"),
        ({"missing": "constant"}, r"data.missing=constant data.fill=None: a constant is"),
    ],
)
def test_a_setting_that_fills_in_nothing_is_refused(write, options, message):
    with pytest.raises(ValueError, match=message):
        Table(path=write(**HOUSES), **SETTINGS | options).load()


def test_a_column_without_a_number_in_training_has_no_mean(write):
    columns = HOUSES | {"area": [None, None, None, 40.0, 50.0, None]}
    options = SETTINGS | USED | {"missing": "mean", "is_test": "part"}
    with pytest.raises(ValueError, match="column area has no number in training rows, whose mean"):
        Table(path=write(**columns), **options).load()


def _warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
