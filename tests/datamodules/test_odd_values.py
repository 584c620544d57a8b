"""Odd numbers are never changed in silence: for every source, and every way to write a number."""

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
from sampling import others_slow
from torch.utils.data import Dataset

from flfast.config.errors import ConfigError
from flfast.datamodules.number_range import as_float32, check_finite, unusable_number
from flfast.datamodules.sources.npz import Npz
from flfast.zoo.datamodules.sources.text_folder import text_folder

NUM = 30
ROWS = st.integers(0, NUM - 1)
OPTIONS = dict.fromkeys(("num_classes", "mean", "std", "task"))
OPTIONS |= {
    "inputs": "inputs",
    "targets": "targets",
    "owner": "auto",
    "is_test": "auto",
}
OPTIONS |= {"random_crop": 0, "random_flip": False, "seed": 0, "test_fraction": 0.25}


class Pairs(Dataset):
    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


def own(data, task, target=None):
    return read_data(data, None, target=target, client=None, task=task)


def read_npz(folder, inputs, targets, _):
    np.savez(folder / "a.npz", inputs=inputs, targets=targets)
    return Npz(root=str(folder / "a.npz"), **OPTIONS).load()


def read_npy(folder, inputs, targets, _):
    np.save(folder / "inputs.npy", inputs)
    np.save(folder / "targets.npy", targets)
    return Npz(root=str(folder), **OPTIONS).load()


def frame_of(inputs, targets):
    return pd.DataFrame(inputs, columns=["a", "b", "c"]).assign(y=targets)


def read_file(folder, inputs, targets, _, *, read, suffix):
    path = folder / f"f{suffix}"
    frame = frame_of(inputs, targets).assign(who="w", part="train", town="Ulm")
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path, index=False)
    return read(path)


def table_of(path, **options):
    names = {"numeric": ["a", "b", "c"], "categorical": [], "is_test": None, "owner": None}
    return read_table(path, **names, **options)


def dataset_of(path):
    return read_hf(path, inputs=["a", "b", "c"], owner=None)


ARRAYS = {
    "npz": read_npz,
    "npy": read_npy,
    "arrays": lambda _, inputs, targets, task: own((inputs, targets), task),
    "tensors": lambda _, inputs, targets, task: own(
        (torch.from_numpy(inputs), torch.from_numpy(targets)), task
    ),
    "Dataset": lambda _, inputs, targets, task: own(Pairs(inputs, targets), task),
    "frame": lambda _, inputs, targets, task: own(frame_of(inputs, targets), task, "y"),
}
FILES = {
    "csv": partial(read_file, read=table_of, suffix=".csv"),
    "parquet": partial(read_file, read=table_of, suffix=".parquet"),
    "hf": partial(read_file, read=dataset_of, suffix=".parquet"),
}
KINDS = ARRAYS | FILES


def drawn(seed=0):
    return np.random.default_rng(seed).standard_normal((NUM, 3))


@pytest.mark.parametrize("source", ARRAYS)
@given(row=ROWS, label=st.integers(-9, -1))
@num_examples(5)
def test_a_negative_label_is_named_with_its_example(tmp_path_factory, source, row, label):
    targets = np.arange(NUM) % 3
    targets[row] = label
    message = (
        rf"labels must lie in \[0, 3\), got {label} to 2; .* example {row} \(the first is 0\)"
    )
    with pytest.raises((ValueError, ConfigError), match=message) as found:
        ARRAYS[source](tmp_path_factory.mktemp("a"), drawn(), targets, "classification")
    where = r"data.targets=targets" if source in {"npz", "npy"} else "data="
    assert where in str(found.value)


@pytest.mark.parametrize("source", KINDS)
@given(row=ROWS, value=st.sampled_from([1e300, -1e39, 4e38]))
@num_examples(5)
def test_an_input_beyond_float32_is_refused_with_its_example(tmp_path_factory, source, row, value):
    inputs = drawn()
    inputs[row, 1] = value
    shown = f"{value:g}".replace("+", r"\+")
    message = rf"example {row}: .*value {shown} exceeds|item {row}: .*{shown} exceeds|"
    message += rf"=:? ?(column )?b: the value {shown} exceeds float32 .*in row {row} \(|"
    message += rf"data.inputs=b: the value {shown} exceeds float32 .*in row {row} \("
    with pytest.raises((ValueError, ConfigError), match=message) as found:
        KINDS[source](tmp_path_factory.mktemp("a"), inputs, np.arange(NUM) % 3, "classification")
    assert "NaN" not in str(found.value)


@pytest.mark.parametrize("source", KINDS)
@given(row=ROWS, value=st.sampled_from([1e300, 1e30, -1e12]))
@num_examples(5)
def test_a_target_far_from_all_others_is_refused_with_its_row(
    tmp_path_factory, source, row, value
):
    targets = drawn(1)[:, 0]
    targets[row] = value
    shown = f"{value:g}".replace("+", r"\+")
    message = rf"(targets|data.targets=\S+|column y): the value {shown} .*in row {row} \("
    with pytest.raises((ValueError, ConfigError), match=message):
        KINDS[source](tmp_path_factory.mktemp("a"), drawn(), targets, "regression")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), -float("inf")])
def test_infinity_is_found_in_every_type(kind, value):
    inputs = torch.zeros(5, 2, dtype=kind)
    assert check_finite(inputs) is None and unusable_number(inputs) is None
    inputs[3, 1] = value
    with pytest.raises(ValueError, match=r"1 examples contain NaN or infinity; .* example 3$"):
        check_finite(inputs)
    assert unusable_number(inputs) == "NaN or infinity"
    if kind != torch.bfloat16:
        assert unusable_number(inputs.numpy()) == "NaN or infinity"


@given(st.floats(width=32, allow_nan=True, allow_infinity=True))
def test_numbers_of_float32_stay_what_they_are(value):
    np.testing.assert_array_equal(as_float32("x", np.array([value])), np.float32([value]))


NUMBERS = {
    "as they are": "{:.3f}",
    "plus": "{:+.3f}",
    "exponent": "{:e}",
    "blanks": " {:.3f} ",
    "integers": "{:.0f}",
}


def texts_with_blanks(spelling, blanks):
    values = [NUMBERS[spelling].format(value) for value in np.linspace(1, 99, NUM)]
    return [blanks.get(row, value) for row, value in enumerate(values)]


@pytest.mark.parametrize(
    "source",
    others_slow([".csv", ".parquet", "hf.csv", "hf.parquet"], [".csv", ".parquet", "hf.csv"]),
)
@given(
    blanks=st.dictionaries(ROWS, st.sampled_from(["", " ", "\t", "  "]), max_size=2),
    spelling=st.sampled_from(sorted(NUMBERS)),
)
@num_examples(10)
def test_blank_cells_make_no_column_of_numbers_one_of_text(
    tmp_path_factory, source, blanks, spelling
):
    texts = texts_with_blanks(spelling, blanks)
    frame = pd.DataFrame({"a": texts, "y": ["p", "q"] * (NUM // 2)})
    path = tmp_path_factory.mktemp("t") / f"f.{source.rpartition('.')[2]}"
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)
    if source.startswith("hf"):
        read = partial(read_hf, path, inputs="a", owner=None)
    else:
        names = dict.fromkeys(("numeric", "categorical", "is_test", "owner"))
        read = partial(read_table, path, **names)
    if blanks:
        with pytest.raises(ValueError, match=rf"=a: {len(blanks)} of {NUM} values") as found:
            read(missing="error")
        assert "category" not in str(found.value) and "categorical" not in str(found.value)
    expected = [float(text) for row, text in enumerate(texts) if row not in blanks]
    found = read(missing="drop")
    assert found.categories == () and found.inputs.dtype == torch.float32
    np.testing.assert_array_equal(found.inputs[:, 0], np.float32(expected))


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_column_named_categorical_has_categories_although_it_holds_numbers(tmp_path, suffix):
    frame = pd.DataFrame({"a": ["01", " ", "1", "3"] * 3, "y": ["p", "q"] * 6})
    path = tmp_path / f"f{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    names = {"numeric": [], "categorical": ["a"], "is_test": None, "owner": None}
    with pytest.raises(ValueError, match=r"data.categorical=a: .*data.missing=category"):
        read_table(path, **names)
    found = read_table(path, missing="category", **names)
    assert found.inputs[:, 0].tolist() == [1, 0, 2, 3] * 3


@given(st.sampled_from(sorted(NUMBERS)))
def test_text_of_a_frame_that_holds_numbers_is_numeric(spelling):
    texts = texts_with_blanks(spelling, {})
    frame = pd.DataFrame({"a": texts, "y": ["p", "q"] * (NUM // 2)})
    found = own(frame, "classification", "y")
    assert found.categories == ()
    np.testing.assert_array_equal(found.inputs[:, 0], np.float32([float(text) for text in texts]))
    if spelling != "integers":  # which may be names of classes
        with pytest.raises(ConfigError, match=r"column a: .*float64 numbers; .*task=regression"):
            own(frame.assign(y=range(NUM)), "classification", "a")
    with pytest.raises(ConfigError, match="column a: 1 of 30 values are missing, in row 3 "):
        own(frame.assign(a=[*texts[:3], "nan", *texts[4:]]), "classification", "y")


@pytest.mark.parametrize(
    "odd", ["{:.1f}%", "{:.1f} %", "${:.2f}", "-{:.2f} €", "{:,.0f}", "1 00{:.0f}", "1_00{:.0f}"]
)
@pytest.mark.parametrize("source", ["csv", "hf", "frame"])
def test_numbers_with_signs_are_refused_by_name(tmp_path, odd, source):
    texts = [odd.format(value) for value in np.linspace(1000, 2000, NUM)]
    if odd.startswith("1"):
        texts = [odd.format(value % 10) for value in range(NUM)]
    frame = pd.DataFrame({"a": texts, "y": ["p", "q"] * (NUM // 2)})
    frame.to_csv(tmp_path / "f.csv", index=False)
    names = dict.fromkeys(("numeric", "categorical", "is_test", "owner"))
    read = {
        "csv": partial(read_table, tmp_path / "f.csv", **names),
        "hf": partial(read_hf, tmp_path / "f.csv", inputs="a", owner=None),
        "frame": partial(own, frame, "classification", "y"),
    }[source]
    with pytest.raises(
        (ValueError, ConfigError), match="column a looks like numbers, but holds '"
    ):
        read()


def test_a_file_in_another_encoding_says_what_to_do(tmp_path):
    (tmp_path / "f.csv").write_bytes("x,y\nBär,1\nUlm,0\n".encode("latin-1"))
    for read in (read_table, read_hf):
        with pytest.raises(ValueError, match=r"f.csv.*byte 0xe4.*; save the file as UTF-8"):
            read(tmp_path / "f.csv")


@pytest.mark.parametrize("kind", ["csr_matrix", "coo_array", "bsr_array"])
def test_sparse_arrays_of_scipy_are_refused(kind):
    sparse = pytest.importorskip("scipy.sparse")
    inputs, targets = getattr(sparse, kind)(drawn()), np.arange(NUM) % 3
    for data in (inputs, (inputs, targets), (drawn(), inputs)):
        with pytest.raises(ConfigError, match=f"data=:.* a sparse {kind}; allowed: dense"):
            own(data, "classification")


@pytest.mark.parametrize("label", [-5, 3])
def test_a_class_outside_of_a_class_label_is_named_with_its_row(tmp_path, label):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"x": datasets.Value("float32"), "y": datasets.Value("int64")})
    rows = {"x": list(range(NUM)), "y": [label if row == 4 else row % 3 for row in range(NUM)]}
    data = datasets.Dataset.from_dict(rows, features=features)
    table = data.data.table
    named = features | {"y": datasets.ClassLabel(names=["a", "b", "c"])}
    info = datasets.DatasetInfo(features=datasets.Features(named))
    datasets.Dataset(table, info=info).save_to_disk(tmp_path / "rows")
    with pytest.raises(ValueError, match=r"data.targets=y: labels .* that of example 4 "):
        read_hf(tmp_path / "rows", owner=None)


def test_a_huge_class_takes_no_memory(tmp_path):
    (tmp_path / "train.csv").write_text('"1","good"\n"2","bad"\n' * 5 + f'"{10**12}","odd"\n')
    with pytest.raises(ValueError, match=r"data.root=.*largest label is 999999999999 for 11"):
        text_folder(
            root=str(tmp_path),
            tokenizer="words",
            vocabulary_size=10,
            max_tokens=2,
            test_fraction=0.5,
            seed=0,
        )
    targets = np.arange(NUM) % 3
    targets[4] = 10**12
    for read in (read_npz, read_npy):
        with pytest.raises(ValueError, match=r"largest label is 1000000000000 for 30"):
            read(tmp_path, drawn(), targets, "classification")
