"""`flfast.evaluate`: a saved model has the numbers that the run's own evaluation gave."""

import json
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from composing import FILES
from omegaconf import OmegaConf
from PIL import Image
from safetensors import safe_open
from sampling import others_slow

import flfast
import flfast.evaluate as evaluate_command
import flfast.export as export_command
from flfast.commands.saved.evaluation_files import evaluate as evaluated_sets
from flfast.commands.saved.evaluation_files import metrics_of
from flfast.config.composition import compose, without_hydra
from flfast.config.errors import ConfigError
from flfast.config.own import NOTHING
from flfast.config.saved_options import EVALUATE, EXPORT, read_options
from flfast.config.saved_run import find_run
from flfast.evaluate import evaluate
from flfast.output.results.table import read_rows
from flfast.setup.opened_run import open_run


def evaluated(run, *words):
    """Metrics by column, without the files."""
    options, overrides = read_options([f"run={run}", "allow=nets_to_export", *words], EVALUATE)
    own = {"true": True, "false": False, None: None}[options.get("personal")]
    opened = open_run(find_run(options, overrides, NOTHING), personal=own)
    return metrics_of(evaluated_sets(opened, options.get("split", "test")))


def written(run, *words, output="evaluation"):
    """Metrics by column, read from the files in `output` of the run's folder."""
    evaluate([f"run={run}", "allow=nets_to_export", f"output={run / output}", *words])
    return json.loads((run / output / "metrics.json").read_text(encoding="utf-8"))["metrics"]


def row_of(run, round_idx, columns):
    row = read_rows(run / "metrics.csv")[round_idx]
    return {name: float(row[name]) for name in columns}


def columns_of(path):
    rows = read_rows(path)
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


REPEATED = {
    "server, from the files": ("ditto", ["finetune_epochs=0"], ["global", "local", "new"]),
    "server, safetensors": ("ditto", ["model={run}/model.safetensors", "split=val"], ["val"]),
    "server, from a checkpoint": ("ditto", ["checkpoint=last", "split=val"], ["val"]),
    "server, a convolution": ("fedavg", ["split=global"], ["global"]),
    "personal, from the files": (
        "ditto",
        ["personal=true"],
        ["personal", "finetuned", "new_finetuned"],
    ),
    "personal, from a checkpoint": (
        "ditto",
        ["personal=true", "checkpoint=last"],
        ["personal", "finetuned", "new_finetuned"],
    ),
    "no complete model on the server": ("fedrep", ["checkpoint=last"], ["personal"]),
    "more than the model predicts": ("fedcp", ["split=val"], ["personal_val"]),
    "the same, from a checkpoint": ("fedcp", ["split=val", "checkpoint=last"], ["personal_val"]),
}


@pytest.mark.parametrize("case", others_slow([*REPEATED], [*REPEATED][::2]))
def test_a_saved_model_repeats_the_last_row_of_its_run(run_of, case):
    name, words, views = REPEATED[case]
    run = run_of(name)
    found = evaluated(run, *(word.format(run=run) for word in words))
    assert {column.partition("/")[0] for column in found} == set(views)
    assert found == pytest.approx(row_of(run, -1, found), rel=1e-6)


@pytest.mark.parametrize("personal", [False, True])
def test_a_checkpoint_has_the_numbers_of_its_round(run_of, personal):
    run = run_of("ditto")
    words = ["split=val", f"personal={personal}".lower()]
    found = evaluated(run, *words, f"checkpoint={run / 'checkpoints' / 'round-000001'}")
    assert found == pytest.approx(row_of(run, 1, found), rel=1e-6)
    assert found != pytest.approx(row_of(run, 2, found), rel=1e-6)
    losses = [float(row["val/loss"]) for row in read_rows(run / "metrics.csv")]
    best = evaluated(run, *words, "checkpoint=best")
    assert best == pytest.approx(row_of(run, 1 + int(np.argmin(losses[1:])), best), rel=1e-6)


def test_the_files_agree_with_each_other(run_of):
    """Metrics from `predictions.csv`, by scikit-learn, are those of all other files."""
    from sklearn.metrics import accuracy_score, confusion_matrix, log_loss

    run = run_of("ditto")
    metrics = written(run, "finetune_epochs=0")
    table = columns_of(run / "evaluation" / "predictions.csv")
    clients = {row["client_id"]: row for row in read_rows(run / "evaluation" / "clients.csv")}
    confusion = columns_of(run / "evaluation" / "confusion.csv")
    assert set(table["set"]) == {"global", "local", "new"} == set(confusion["set"])
    for name in ("global", "local", "new"):
        part = {column: values[table["set"] == name] for column, values in table.items()}
        target, predicted = part["target"].astype(int), part["predicted"].astype(int)
        assert len(set(part["example"])) == len(target)
        scores = np.stack([part[f"probability_{c}"] for c in range(10)], axis=1).astype(float)
        assert (scores.argmax(axis=1) == predicted).all()
        own = scores[np.arange(len(target)), target]
        assert part["probability"].astype(float) == pytest.approx(own)
        assert accuracy_score(target, predicted) == pytest.approx(metrics[f"{name}/accuracy"])
        scores /= scores.sum(axis=1, keepdims=True)
        loss = log_loss(target, scores, labels=range(10))
        assert loss == pytest.approx(metrics[f"{name}/loss"], rel=1e-4)
        matrix = np.stack([confusion[str(c)][confusion["set"] == name] for c in range(10)], axis=1)
        assert (matrix.astype(int) == confusion_matrix(target, predicted, labels=range(10))).all()
        for client in set(part["client_id"]) - {"-1"}:
            mine = part["client_id"] == client
            share = accuracy_score(target[mine], predicted[mine])
            assert float(clients[client][f"{name}/accuracy"]) == pytest.approx(share)
            assert int(clients[client][f"{name}/examples"]) == mine.sum()
    assert (run / "evaluation" / "confusion.png").stat().st_size > 1000


def test_predictions_as_parquet_have_the_same_rows(run_of):
    parquet = pytest.importorskip("pyarrow.parquet")
    run = run_of("ditto")
    written(run, "split=val")
    written(run, "split=val", "predictions=parquet", output="other")
    text = columns_of(run / "evaluation" / "predictions.csv")
    found = parquet.read_table(run / "other" / "predictions.parquet").to_pydict()
    assert list(found) == list(text)
    assert found.pop("set") == text.pop("set").tolist()
    for name, values in found.items():
        assert values == pytest.approx(text[name].astype(float), rel=1e-5)


def test_training_examples_are_those_of_the_clients_that_train(run_of):
    run = run_of("ditto")
    written(run, "split=train")
    train = columns_of(run / "evaluation" / "predictions.csv")
    written(run, "finetune_epochs=0")
    test = columns_of(run / "evaluation" / "predictions.csv")
    assert set(train["set"]) == {"train"}
    assert not set(train["example"]) & set(test["example"])
    assert len(train["example"]) > 5 * (test["set"] == "local").sum()
    held_out = set(test["client_id"][test["set"] == "new"])
    assert set(train["client_id"]) == {str(k) for k in range(5)} - held_out


def test_other_data_are_evaluated_with_a_warning(run_of, caplog):
    run = run_of("fedavg")
    found = written(run, "data.test_fraction=0.4", "split=global")
    rows = read_rows(run / "evaluation" / "predictions.csv")
    assert len(rows) == 719  # 40 % of 1,797
    assert found["global/loss"] != pytest.approx(row_of(run, -1, found)["global/loss"])
    assert "not the run's data" in caplog.text
    words = ["data=synthetic", "data.shape=[1,8,8]", "data.num_test=50", "split=global"]
    written(run, *words)
    assert len(read_rows(run / "evaluation" / "predictions.csv")) == 50


def test_nothing_is_written_through_links(run_of, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(run_of("ditto"), run)
    shutil.rmtree(run / "evaluation", ignore_errors=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "metrics.json").write_text("mine")
    (run / "evaluation").symlink_to(tmp_path / "mine")
    words = [f"run={run}", "split=val", "finetune_epochs=0"]
    with pytest.raises(OSError, match="is a link"):
        evaluate(words)
    (run / "evaluation").unlink()
    (run / "evaluation").mkdir()
    (run / "evaluation" / "metrics.json").symlink_to(tmp_path / "mine" / "metrics.json")
    evaluate(words)
    assert "val/loss" in (run / "evaluation" / "metrics.json").read_text(encoding="utf-8")
    assert {p.name: p.read_text() for p in (tmp_path / "mine").iterdir()} == {
        "metrics.json": "mine"
    }


def test_safetensors_hold_the_same_weights_and_a_description(run_of):
    run = run_of("fedavg")
    expected = torch.load(run / "model.pt", weights_only=True)
    with safe_open(run / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(expected)
        for name, leaf in expected.items():
            torch.testing.assert_close(file.get_tensor(name), leaf, rtol=0, atol=0)
        about = file.metadata()
    described = {name: about[name] for name in ("algorithm", "model", "input_shape", "round")}
    assert described == {
        "algorithm": "fedavg",
        "model": "nets_to_export.conv_net",
        "input_shape": "[1, 8, 8]",
        "round": "1",
    }


@pytest.mark.parametrize(
    ("module", "options"), [(evaluate_command, EVALUATE), (export_command, EXPORT)]
)
def test_the_commands_explain_themselves_and_end_with_2(module, options, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["command", "--help"])
    module.main()
    usage = capsys.readouterr().out
    assert all(f"  {option}=" in usage for option in options)
    monkeypatch.setattr(sys, "argv", ["command", "run=nowhere", "format=torch", "seed"])
    with pytest.raises(SystemExit) as end:
        module.main()
    assert end.value.code == 2
    assert "seed: not a setting" in capsys.readouterr().err


REFUSED = {
    ("split=tset",): "split=tset: allowed: test, val, train, global",
    ("splitt=test",): "unknown key splitt; did you mean split",
    ("rounds=3",): "rounds=3: rounds changes nothing in a saved model",
    ("data.testfraction=0.2",): "unknown key data.testfraction; did you mean test_fraction",
    ("data.test_fraction=2",): "data.test_fraction=2: ",
    ("data=minst",): "minst",
    ("output=/dev/null",): "output=/dev/null is a file; allowed: a folder, or a new path",
    ("--verbose",): "--verbose: not a setting",
    ("model=nowhere.pt",): "model=nowhere.pt: there is no such file",
    ("model=a.pt", "checkpoint=last"): "model and checkpoint exclude each other",
    ("checkpoint=third",): "checkpoint=third: no checkpoint; allowed: last, best, or its folder",
    ("checkpoint=best",): "checkpoint=best: the run kept none; train with checkpoint.keep_best",
    ("personal=true",): "personal=true: clients of algorithm=fedavg have no models of their own",
    ("model._target_=flfast.models.mlp.mlp", "+model.hidden=[8]", "+model.dropout=0.0"): (
        "does not fit the model: missing"
    ),
    ("data=synthetic", "partition=natural"): "model=nets_to_export.conv_net: ValueError",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_wrong_words_are_refused(run_of, words):
    with pytest.raises(ConfigError) as refusal:
        written(run_of("fedavg"), *words)
    assert REFUSED[words] in str(refusal.value)


def test_runs_without_the_weights_are_refused_with_what_saves_them(run_of, tmp_path):
    fedrep = run_of("fedrep")
    with pytest.raises(ConfigError, match=r"callbacks\.final_weights\.max_personal=null"):
        evaluated(fedrep)
    with pytest.raises(ConfigError, match="personal=false: the server of algorithm=fedrep has no"):
        evaluated(fedrep, "personal=false")
    with pytest.raises(ConfigError, match="split=test: there are no such examples"):
        evaluated(fedrep, "checkpoint=last", "split.test=0.0")
    with pytest.raises(ConfigError, match="split=global with personal=true"):
        evaluated(fedrep, "checkpoint=last", "split=global")
    with pytest.raises(ConfigError, match="allowed: the folder of a run"):
        evaluated(tmp_path)
    shutil.copytree(fedrep / ".hydra", tmp_path / ".hydra")
    with pytest.raises(ConfigError, match=r"has no model\.pt"):
        evaluated(tmp_path)
    with pytest.raises(ConfigError, match=r"train with checkpoint\.every=auto"):
        evaluated(tmp_path, "checkpoint=last")
    config = tmp_path / ".hydra" / "config.yaml"
    text = config.read_text()
    config.write_text(re.sub(r"^rounds: \d+", "rounds: 1", text, flags=re.M))
    shutil.copy(fedrep / "metrics.csv", tmp_path)
    message = r"config.yaml: rounds=1, and metrics.csv has round \d+; allowed: .* rounds >= \d+"
    with pytest.raises(ConfigError, match=message):
        evaluated(tmp_path, "checkpoint=last")
    with pytest.raises(ConfigError, match="run is missing"):
        evaluate(["split=test"])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_survival_is_resumed_and_has_curves_of_the_servers_model(tmp_path, algorithm):
    words = ["data=synthetic", "task=survival", "partition=natural", "data.num_clients=3"]
    words += ["data.num_examples=60", "data.num_test=30", "data.noise=0", "checkpoint.every=1"]
    words += [f"algorithm={algorithm}", "model=logistic", "strategy=single", *FILES]
    for folder, rounds in (("whole", [2]), ("resumed", [1, 2])):
        for stop in rounds:
            flfast.run(*words, f"rounds={stop}", "resume=auto", folder=tmp_path / folder)
    run = tmp_path / "whole"
    rows, again = (read_rows(tmp_path / name / "metrics.csv") for name in ("whole", "resumed"))
    for column in (
        name for name in rows[-1] if name.startswith(("global/", "local/", "personal/"))
    ):
        assert rows[-1][column] == again[-1][column]
    evaluate([f"run={run}", "personal=false"])
    metrics = json.loads((run / "evaluation" / "metrics.json").read_text())["metrics"]
    expected = float(rows[-1]["global/concordance"])
    assert metrics["global/concordance"] == pytest.approx(expected, rel=1e-6)
    found = columns_of(run / "evaluation" / "survival.csv")
    assert set(found["set"]) == {"global", "local"}
    assert (run / "evaluation" / "survival.png").stat().st_size > 1000
    if algorithm == "ditto":
        evaluate([f"run={run}", "personal=true", f"output={tmp_path / 'own'}"])
        assert not (tmp_path / "own" / "survival.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "ditto"])
def test_forecasts_are_resumed_and_in_units_of_the_data(tmp_path, algorithm):
    words = ["data=loads", "data.num_clients=3", "data.weeks=4", "data.window=24", "batch_size=32"]
    words += ["data.stride=24", "model=forecaster", "strategy=single", *FILES]
    words += [f"algorithm={algorithm}", "checkpoint.every=1", "split.val=0.2"]
    for folder, rounds in (("whole", [2]), ("resumed", [1, 2])):
        for stop in rounds:
            flfast.run(*words, f"rounds={stop}", "resume=auto", folder=tmp_path / folder)
    run = tmp_path / "whole"
    rows, again = (read_rows(tmp_path / name / "metrics.csv") for name in ("whole", "resumed"))
    view = "personal" if algorithm == "ditto" else "local"
    for metric in ("mae", "rmse", "mase"):
        assert rows[-1][f"{view}/{metric}"] == again[-1][f"{view}/{metric}"]
    evaluate([f"run={run}", f"personal={str(algorithm == 'ditto').lower()}"])
    found = columns_of(run / "evaluation" / "predictions.csv")
    chosen = [n for n, name in enumerate(found["set"]) if name == view]
    true, predicted = (
        np.array([[float(found[f"{kind}_{h}"][n]) for h in range(24)] for n in chosen])
        for kind in ("target", "predicted")
    )
    error, last = true - predicted, {k: float(v or 0) for k, v in rows[-1].items() if view in k}
    assert np.abs(error).mean() == pytest.approx(last[f"{view}/mae"], rel=1e-4)
    assert np.square(error).mean() ** 0.5 == pytest.approx(last[f"{view}/rmse"], rel=1e-4)
    drawn = columns_of(run / "evaluation" / "forecasts.csv")
    assert {*drawn["set"]} == {view} and {*drawn["place"]} == {"best", "median", "worst"}
    assert (run / "evaluation" / "forecasts.png").stat().st_size > 1000


@pytest.mark.slow
def test_the_experiment_segmentation_learns_and_is_resumed_evaluated_and_drawn(tmp_path):
    words = ["experiment=segmentation", "strategy=single", "checkpoint.every=20"]
    words.append("callbacks=default")
    for folder, rounds in (("whole", [30]), ("resumed", [20, 30])):
        for stop in rounds:
            flfast.run(*words, f"rounds={stop}", "resume=auto", folder=tmp_path / folder)
    run = tmp_path / "whole"
    rows, again = (read_rows(tmp_path / name / "metrics.csv") for name in ("whole", "resumed"))
    for column in ("train/loss", "local/dice", "local/iou", "local/pixel_accuracy"):
        assert rows[-1][column] == again[-1][column]
    first, last = (float(rows[place]["local/dice"]) for place in (0, -1))
    assert first < 0.2 and last > 0.5
    evaluate([f"run={run}"])
    metrics = json.loads((run / "evaluation" / "metrics.json").read_text())["metrics"]
    assert metrics["local/dice"] == pytest.approx(last, rel=1e-3)
    found = columns_of(run / "evaluation" / "predictions.csv")
    pixels = [
        sum(map(int, found[f"{kind}_{c}"]))
        for kind in ("overlap", "predicted", "target")
        for c in range(3)
    ]
    right, predicted, there = np.reshape(pixels, (3, 3))
    dice = (2 * right / (predicted + there))[1:].mean()
    assert metrics["global/dice"] == pytest.approx(dice)
    assert (run / "masks.png").read_bytes()[:4] == b"\x89PNG"
    assert 'id="segmentation"' in (run / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "svhn", "emnist"])
def test_a_strangers_data_make_no_folder_and_open_no_network(name, run_of, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *host, **_: asked.append(host) or [])
    run = shutil.copytree(run_of("ditto"), tmp_path / "run")
    path = run / ".hydra" / "config.yaml"
    config = OmegaConf.load(path)
    data = without_hydra(compose([f"data={name}", "data.download=true"])).data
    config.data = {**data, "root": str(tmp_path / "elsewhere")}
    OmegaConf.save(config, path)
    with pytest.raises(ConfigError, match="elsewhere has no readable"):
        evaluated(run)
    assert not asked and not (tmp_path / "elsewhere").exists()


def test_a_strangers_folder_of_datasets_opens_no_network(run_of, tmp_path, monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *where: pytest.fail(str(where)))
    run = shutil.copytree(run_of("ditto"), tmp_path / "run")
    (tmp_path / "data").mkdir()
    url = "http://127.0.0.1:9/x.csv"
    about = f"---\nconfigs: [{{config_name: default, data_files: '{url}'}}]\n---\n"
    (tmp_path / "data" / "README.md").write_text(about)
    path = run / ".hydra" / "config.yaml"
    config = OmegaConf.load(path)
    words = [f"data.path={tmp_path / 'data'}", "data.inputs=x", "data.targets=y"]
    config.data = without_hydra(compose(["data=hf", "data.download=true", *words])).data
    OmegaConf.save(config, path)
    with pytest.raises(ConfigError, match=r"README.md names files elsewhere"):
        evaluated(run)


def test_a_strangers_images_are_decoded_and_not_written(run_of, tmp_path, caplog):
    run, rng = shutil.copytree(run_of("ditto"), tmp_path / "run"), np.random.default_rng(0)
    for label in range(10):
        (tmp_path / "images" / str(label)).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(256, size=(8, 8)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / str(label) / f"{number}.png")
    path = run / ".hydra" / "config.yaml"
    config = OmegaConf.load(path)
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    given = {"root": str(tmp_path / "images"), "cache": str(outside), "channels": 1}
    config.data = {**without_hydra(compose(["data=image_folder"])).data, **given}
    OmegaConf.save(config, path)
    assert "local/accuracy" in evaluated(run, "finetune_epochs=0")
    assert not any(outside.iterdir())
    assert any(line.startswith(f"data.cache={outside}: of a saved") for line in caplog.messages)
    evaluated(run, "finetune_epochs=0", f"data.cache={outside}")
    assert [path.suffix for path in outside.iterdir()] == [".npy"]
