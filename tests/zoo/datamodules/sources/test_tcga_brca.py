from pathlib import Path

import pytest
import torch

from flfast.zoo.datamodules.sources.tcga_brca import tcga_brca

FILES = {
    "brca.csv": "pid,age,white,E,T\nTCGA-AA-1,60,1,1.0,30.0\nTCGA-BB-2,50,0,0.0,0.0\n"
    "TCGA-CC-3,40,1,0.0,700.0\nTCGA-AA-4,70,0,1.0,12.0\nTCGA-BB-5,80,1,0.0,9.0\n",
    "centers.csv": "TSS Code,Source Site,Country,State,Region\nAA,A,USA,PA,South\n"
    "BB,B,Germany,,Europe\nCC,C,USA,,Other\n",
    "train_test_split.csv": "pid,fold,fold2\nTCGA-BB-5,test,test_0\nTCGA-AA-4,test,test_1\n"
    "TCGA-AA-1,train,train_1\nTCGA-BB-2,train,train_0\n",
}
PUBLISHED = Path(__file__).parents[5] / "shared/data/tcga-brca"


@pytest.fixture
def load(tmp_path):
    def load(standardise="none", **changes):
        for name, content in {**FILES, **changes}.items():
            (tmp_path / name.replace("_csv", ".csv")).write_text(content)
        return tcga_brca(root=str(tmp_path), standardise=standardise)

    return load


def test_regions_are_clients_and_patients_without_a_fold_are_left_out(load):
    examples = load()
    assert examples.inputs.tolist() == [[60, 1], [50, 0], [70, 0], [80, 1]]
    assert examples.targets.tolist() == [[30, 1], [0, 0], [12, 1], [9, 0]]
    assert examples.is_test.tolist() == [False, False, True, True]
    assert examples.owner.tolist() == [1, 0, 1, 0]
    assert examples.client_names == ("Europe", "South")
    assert (examples.task, examples.input_names) == ("survival", ("age", "white"))


def test_test_patients_do_not_standardise(load):
    assert load("all").inputs[:2].tolist() == [[1, 1], [-1, -1]]
    assert load("client").inputs[:2].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("brca.csv", "pid,", "patient,", "brca.csv has no column 'pid'; it has patient, age"),
        ("centers.csv", "AA,", "DD,", "patient TCGA-AA-1 is of fold 'train_1' and center 'AA'"),
        ("train_test_split.csv", "train_1", "val_1", "of fold 'val_1' and center 'AA'; allowed"),
        ("brca.csv", "1.0,30.0", "2.0,30.0", "the event of example 0 is 2; allowed: 0"),
        ("brca.csv", "60,1", "old,1", "column age .*'old'"),
    ],
)
def test_damaged_files_are_a_clear_error(load, name, old, new, message):
    with pytest.raises(ValueError, match=message):
        load(**{name: FILES[name].replace(old, new)})


def test_missing_files_are_a_clear_error(tmp_path):
    with pytest.raises(ValueError, match=r"data\.root=\S+brca\.csv cannot be read as a table"):
        tcga_brca(root=str(tmp_path), standardise="none")


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
def test_the_published_files_have_the_published_clients():
    examples = tcga_brca(root=str(PUBLISHED), standardise="none")
    owner, test = torch.from_numpy(examples.owner), torch.from_numpy(examples.is_test)
    assert owner[~test].bincount().tolist() == [248, 156, 164, 129, 129, 40]
    assert owner[test].bincount().tolist() == [63, 40, 42, 33, 33, 11]
    assert examples.input_shape == (39,)
    assert examples.client_names == (
        *("Northeast", "South", "West", "Midwest", "Europe", "Canada"),
    )
