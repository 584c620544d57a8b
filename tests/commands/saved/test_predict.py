"""`flfast.predict`: raw rows are what they were in training, whoever else is beside them."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from composing import FILES
from exported import LOAD

import flfast
from flfast.datamodules.preprocessing import read_preprocessing
from flfast.export import export
from flfast.predict import predict

TASKS = {
    "classification": ["outcome"],
    "regression": ["dose", "weight"],
    "multilabel": ["fever", "cough"],
    "survival": ["days", "died"],
}
IID = ["partition.num_clients=2"]
SETTINGS = {
    "all": [*IID, "data.standardise=all"],
    "none": [*IID, "data.standardise=none"],
    "client": ["data.owner=site", "partition=natural", "data.standardise=client"],
    "filled": [*IID, "data.missing=median", "data.missing_indicator=true"],
}


def patients(num, seed=0, *, lacking=False):
    """Rows of a table, with numbers of several sizes and a column of text."""
    rng = np.random.default_rng(seed)
    age, crp = rng.normal(60, 9, num).round(1), rng.exponential(2e-3, num)
    sex, site = rng.choice(["d", "f", "m"], num), rng.choice(["Ost", "West"], num)
    risk = (age - 60) / 9 + (sex == "m")
    return pd.DataFrame(
        {
            "patient": [f"p{number}" for number in range(num)],
            "site": site,
            "age": age + 30 * (site == "West"),
            "crp": np.where((np.arange(num) % 7 == 3) & lacking, np.nan, crp),
            "sex": np.where((np.arange(num) % 5 == 2) & lacking, None, sex),
            "outcome": np.where(risk > 0, "ill", "well"),
            "dose": 1e4 + 50 * risk,
            "weight": 70 + 5.5 * risk,
            "fever": (risk > 0.3).astype(int),
            "cough": (risk < 0).astype(int),
            "days": rng.integers(1, 99, num),
            "died": (risk > 0).astype(int),
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(task, standardise) -> the folder of a run and its table; each runs once."""
    made = {}

    def trained(task, standardise):
        if (task, standardise) not in made:
            folder = tmp_path_factory.mktemp(f"{task}-{standardise}")
            patients(120, lacking=standardise == "filled").to_csv(
                folder / "patients.csv", index=False
            )
            flfast.run(
                *("data=table", f"data.path={folder}/patients.csv", f"task={task}", "rounds=1"),
                *(
                    f"data.targets=[{','.join(TASKS[task])}]",
                    f"data.standardise={standardise.replace('filled', 'all')}",
                ),
                *("data.numeric=[crp,age]", "data.categorical=[sex]", "model=logistic"),
                *("trainer.devices=1", *FILES),
                *SETTINGS[standardise],
                folder=folder / "run",
            )
            made[task, standardise] = folder
        return made[task, standardise]

    return trained


CASES = [*((task, "all") for task in TASKS), ("classification", "none"), ("regression", "client")]
CASES += [("classification", "filled")]


@pytest.mark.parametrize(("task", "standardise"), CASES)
def test_a_raw_row_gives_what_the_run_predicted(trained, tmp_path, task, standardise):
    """By the command and by a program, of all rows and of a single one."""
    folder, frame = trained(task, standardise), patients(120, lacking=standardise == "filled")
    run = flfast.Run(folder / "run")
    run.evaluate("split=train", f"output={tmp_path}/known")
    known = pd.read_csv(tmp_path / "known" / "predictions.csv")
    raw = frame.drop(columns=TASKS[task])
    raw.to_csv(tmp_path / "raw.csv", index=False)
    words = [f"run={folder}/run", f"data.path={tmp_path}/raw.csv", "key=patient"]
    table = pd.read_csv(predict([*words, f"output={tmp_path}/p.csv"]))
    assert table["patient"].tolist() == frame["patient"].tolist()
    file = run.predict(f"data.path={tmp_path}/raw.csv")
    for columns in (table, file, run.predict(raw), run.predict(raw[:1])):
        rows = known["row"].to_numpy()
        chosen = rows < len(columns)
        for name, before, unit in expected(known, task, read_preprocessing(run.folder)):
            now = columns[name].to_numpy()[rows[chosen]]
            if unit is None:
                assert (now == before[chosen]).all()
            else:
                np.testing.assert_allclose(now, before[chosen], rtol=2e-5, atol=2e-5 * unit)


@pytest.mark.parametrize("task", TASKS)
def test_other_rows_are_scaled_and_coded_as_in_training(trained, tmp_path, task):
    """Rows of one sex, which by themselves would have another mean and other codes."""
    folder, frame = trained(task, "all"), patients(120)
    few = frame[frame["sex"] == "m"].iloc[:30]
    few.to_csv(tmp_path / "few.csv", index=False)
    run = flfast.Run(folder / "run")
    run.evaluate("split=train", f"output={tmp_path}/known")
    known = pd.read_csv(tmp_path / "known" / "predictions.csv").set_index("row")
    words = ("data.test_fraction=0", "split=train", f"output={tmp_path}/few")
    run.evaluate(f"data.path={tmp_path}/few.csv", *words)
    found = pd.read_csv(tmp_path / "few" / "predictions.csv")
    found.index = few.index[found["row"]]
    both = found.index.intersection(known.index)
    assert len(both) > 9
    for name in set(found) - {"set", "example", "row", "client_id", "loss"}:
        before, now = list(known.loc[both, name]), list(found.loc[both, name])
        assert now == (before if isinstance(now[0], str) else pytest.approx(before, 2e-5))


def expected(known, task, kept):
    """(name of a column, what the run predicted, its unit; None of a text)."""
    if task == "classification":
        yield "predicted", known["predicted_class"].to_numpy(), None
        for place, name in enumerate(["ill", "well"]):
            yield f"probability_{name}", known[f"probability_{place}"].to_numpy(), 1
    for place, name in enumerate(TASKS[task]):
        if task == "regression":
            scale = kept.columns.targets[name]
            values = known[f"predicted_{place}"].to_numpy() * scale.deviation + scale.mean
            yield f"predicted_{name}", values, scale.deviation
        if task == "multilabel":
            yield f"probability_{name}", known[f"probability_{place}"].to_numpy(), 1
    if task == "survival":
        yield "log_hazard", known["predicted"].to_numpy(), 1


WRONG = {
    "a missing column": (lambda f: f.drop(columns="age"), "has no column 'age', which the model"),
    "an unknown category": (
        lambda f: f.assign(sex=["x", *f["sex"][1:]]),
        r"column sex holds 'x' in row 0 .*which the model has not seen; allowed: d, f, m",
    ),
    "a missing value": (
        lambda f: f.assign(crp=[None, *f["crp"][1:]]),
        "column crp: 1 of 120 values are missing, in row 0",
    ),
    "a text": (lambda f: f.assign(age="old"), "column age holds text, such as 'old'"),
}


@pytest.mark.parametrize("change", WRONG)
def test_rows_that_the_model_cannot_read_are_refused(trained, tmp_path, change):
    changed, message = WRONG[change]
    folder, frame = trained("classification", "all"), changed(patients(120))
    frame.to_csv(tmp_path / "raw.csv", index=False)
    with pytest.raises(flfast.ConfigError, match=message):
        predict([f"run={folder}/run", f"data.path={tmp_path}/raw.csv"])
    with pytest.raises(flfast.ConfigError, match=message):
        flfast.Run(folder / "run").predict(frame)


def test_columns_that_nobody_reads_are_named(trained, tmp_path, caplog):
    folder = trained("classification", "all")
    patients(9).to_csv(tmp_path / "raw.csv", index=False)
    with caplog.at_level("INFO"):
        predict([f"run={folder}/run", f"data.path={tmp_path}/raw.csv", f"output={tmp_path}/p.csv"])
    assert "the model does not read the columns patient, site, outcome" in caplog.text


@pytest.mark.parametrize("kind", ["torch", "onnx"])
@pytest.mark.parametrize(("task", "standardise"), CASES)
def test_an_exported_program_reads_raw_rows(trained, tmp_path, task, standardise, kind):
    if kind == "onnx":
        pytest.importorskip("onnxscript")
    folder, frame = trained(task, standardise), patients(120, lacking=standardise == "filled")
    words = [f"run={folder}/run", f"format={kind}", f"output={tmp_path}/program"]
    if standardise == "client":
        with pytest.raises(flfast.ConfigError, match=r"standardise=client: .*client=NUMBER"):
            export(words)
        return
    program, about = LOAD[kind](export(words))
    columns = json.loads(about["columns"])
    names = columns["categories"]["sex"]
    codes = [names.index(None if pd.isna(name) else name) for name in frame["sex"]]
    rows = torch.tensor(np.column_stack([frame[["crp", "age"]], codes]))
    with torch.no_grad():
        outputs = program(rows).numpy()
    found = flfast.Run(folder / "run").predict(frame)
    if task == "classification":
        names = np.array(json.loads(about["classes"]))
        assert (names[outputs.argmax(1)] == found["predicted"]).all()
    else:
        column = {
            "regression": "predicted_dose",
            "multilabel": "probability_fever",
            "survival": "log_hazard",
        }[task]
        values = outputs[:, 0] if task != "multilabel" else 1 / (1 + np.exp(-outputs[:, 0]))
        np.testing.assert_allclose(values, found[column], rtol=1e-5, atol=1e-5)
