"""Text of a DataFrame is read as `data=table` reads it, and names are shown."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from composing import FILES
from own_reading import read_data

import flfast
from flfast.datamodules.sources.tabular import Table
from flfast.output.results.table import read_rows

CITIES = ["Bonn", "Ulm", "Essen", "Aachen"]
FRAME = pd.DataFrame(
    {
        "city": [CITIES[n % 4] for n in range(48)],
        "x": np.linspace(-1, 1, 48),
        "kind": pd.Categorical([["a", "b"][n % 2] for n in range(48)]),
        "label": [["no", "yes", "$?$"][n % 3] for n in range(48)],
        "who": [["ward 1/a", "ward_b", "Ulm"][n // 16] for n in range(48)],
    }
)


def test_a_frame_is_read_as_the_table_of_its_file(tmp_path):
    FRAME.to_parquet(tmp_path / "t.parquet")
    expected = Table(
        path=str(tmp_path / "t.parquet"),
        targets="label",
        owner="who",
        numeric=None,
        categorical=None,
        is_test=None,
        test_fraction=0.0,
        standardise="none",
        seed=0,
        standardise_targets=False,
        fill=None,
        missing_indicator=False,
        missing="error",
        task=None,
    ).load()
    found = read_data(FRAME, None, target="label", client="who")
    for name in ("inputs", "targets"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    assert (found.owner == expected.owner).all()
    assert (found.categories, found.num_classes) == (expected.categories, expected.num_classes)
    assert found.class_names == expected.class_names == ("$?$", "no", "yes")
    assert found.client_names == ("Ulm", "ward 1/a", "ward_b")


def test_texts_of_a_test_set_have_the_numbers_of_the_training_set():
    train, test = FRAME[FRAME["city"] != "Ulm"], FRAME[FRAME["city"] == "Ulm"]
    found = read_data(train, test[[*test.columns][::-1]], target="label", client="who")
    assert found.categories == (4, 2)
    cities = found.inputs[:, 1].int().tolist()
    assert set(cities[: len(train)]) == {0, 1, 2} and set(cities[len(train) :]) == {3}
    assert found.is_test.sum() == len(test)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"day": pd.Timestamp("2020-01-01")}, "column day: has the type timestamp"),
        ({"odd": [1 + 1j] * 48}, "data=: column odd: .*complex.*; allowed: numbers and text"),
        ({"long": [10**30] * 48}, "data=: column long: .*; allowed: numbers and text"),
        ({"area": [*["1.5", "2", "4e3"] * 15, "3", "?", "5"]}, "column area looks like numbers"),
        (
            {"label": [None, *FRAME["label"][1:]]},
            r"column label: 1 of 48 values are missing, in row 0 .*; use data\.dropna\(subset=",
        ),
        (
            {"x": [np.nan, *FRAME["x"][1:]]},
            r"column x: 1 of 48 values are missing, in row 0 .*, or data\['x'\]\.fillna",
        ),
        ({"mixed": ["a", 1] * 24}, "data=: column mixed: .*; allowed: numbers and text$"),
    ],
)
def test_what_a_table_refuses_is_refused(change, message):
    with pytest.raises(flfast.ConfigError, match=message):
        read_data(FRAME.assign(**change), None, target="label", client="who")


def test_numbers_of_the_type_object_are_numbers_unless_they_are_categories():
    numbers = [float(n % 5) for n in range(48)]
    frame = FRAME[["who", "label"]].assign(n=np.array(numbers, dtype=object))
    found = read_data(frame, None, target="label", client="who")
    assert found.categories == () and found.inputs[:, 0].tolist() == numbers
    said = frame.assign(n=frame["n"].astype("category"))
    assert read_data(said, None, target="label", client="who").categories == (5,)
    odd = frame.assign(n=["1,234", "2"] * 24)
    with pytest.raises(flfast.ConfigError, match=r"frame\['n'\].astype\('category'\)"):
        read_data(odd, None, target="label", client="who")
    said = odd.assign(n=odd["n"].astype("category"))
    assert read_data(said, None, target="label", client="who").categories == (2,)


def test_a_regression_has_no_text_as_target():
    with pytest.raises(flfast.ConfigError, match=r"data=: column label holds text, such as 'no'"):
        read_data(FRAME, None, target="label", client="who", task="regression")
    frame = FRAME.assign(label=np.arange(48.0).astype(object))
    found = read_data(frame, None, target="label", client="who", task="regression")
    assert found.targets[:, 0].tolist() == [*range(48)] and found.class_names == ()


@pytest.mark.parametrize("texts", [["city", "kind"], []])
def test_a_test_set_may_lack_the_column_of_clients(texts):
    frame = FRAME[["x", "label", *texts]].assign(who=[n // 16 for n in range(48)])
    frame = frame if texts else frame.assign(label=[n % 3 for n in range(48)])
    test = frame.drop(columns="who")
    found = read_data(frame, test, target="label", client="who")
    assert found.client_names == () and found.owner.tolist() == [*frame["who"], *[-1] * 48]


@pytest.mark.slow
def test_names_are_shown_wherever_numbers_were(quick):
    run = quick(
        *("algorithm=ditto", "callbacks=files", "local_epochs=1", "model=logistic"),
        "+callbacks.report._target_=flfast.output.callbacks.report_page.ReportPage",
        data=FRAME,
        target="label",
        client="who",
    )
    names = {"0": "Ulm", "1": "ward 1/a", "2": "ward_b"}
    rows = read_rows(run.folder / "clients.csv")
    assert {row["client_id"]: row["client"] for row in rows} == names
    about = json.loads((run.folder / "partition.json").read_text())
    assert {str(c["client_id"]): c["name"] for c in about["clients"]} == names
    assert about["class_names"] == ["$?$", "no", "yes"]
    files = {path.name for path in (run.folder / "personal").iterdir()}
    assert files == {"0-Ulm.pt", "1-ward_1_a.pt", "2-ward_b.pt"}
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "2 ward_b" in page and "label yes" in page
    again = flfast.Run(run.folder, data=FRAME, target="label", client="who")
    last = read_rows(run.folder / "metrics.csv")[-1]
    measured = again.evaluate("personal=true", "split=test")
    assert measured == pytest.approx({name: float(last[name]) for name in measured}, rel=1e-6)
    path = again.export("format=torch", "client=1")
    assert path.name == "1-ward_1_a.pt2"
    evaluated = read_rows(run.folder / "evaluation" / "clients.csv")
    assert {row["client_id"]: row["client"] for row in evaluated} == names


def test_names_of_the_data_are_those_of_clients_only_if_clients_are_whole(quick):
    run = quick(
        *(*FILES, "partition=iid", "partition.num_clients=2", "model=logistic"),
        data=FRAME,
        target="label",
        client="who",
    )
    assert "client" not in read_rows(run.folder / "clients.csv")[0]
