"""Text of a DataFrame is read as `data=table` reads it, and names are shown."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import flfast
from flfast.api.own_data import read_data
from flfast.datamodules.sources.tabular import table
from flfast.results.table import read_rows

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
    expected = table(
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
        missing="error",
        task=None,
    )
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
        ({"day": pd.Timestamp("2020-01-01")}, "column day has the type timestamp"),
        ({"label": [None, *FRAME["label"][1:]]}, "column label: 1 of 48 values are missing"),
        ({"x": [np.nan, *FRAME["x"][1:]]}, "column x"),
        ({"mixed": ["a", 1] * 24}, "data=: "),
    ],
)
def test_what_a_table_refuses_is_refused(change, message):
    with pytest.raises(flfast.ConfigError, match=message):
        read_data(FRAME.assign(**change), None, target="label", client="who")


def test_names_are_shown_wherever_numbers_were(quick):
    run = quick(
        *("algorithm=ditto", "callbacks=files", "local_epochs=1", "model=logistic"),
        "+callbacks.report._target_=flfast.callbacks.report_page.ReportPage",
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
    assert again.evaluate("personal=true") == again.evaluate("personal=true")
    path = again.export("format=torch", "client=1")
    assert path.name == "1-ward_1_a.pt2"
    evaluated = read_rows(run.folder / "evaluation" / "clients.csv")
    assert {row["client_id"]: row["client"] for row in evaluated} == names


def test_names_of_the_data_are_those_of_clients_only_if_clients_are_whole(quick):
    run = quick(
        *("callbacks=files", "partition=iid", "partition.num_clients=2", "model=logistic"),
        data=FRAME,
        target="label",
        client="who",
    )
    assert "client" not in read_rows(run.folder / "clients.csv")[0]
