"""The files at the end of a run are the models that the last row measured."""

import pytest
import torch
from algorithms_by_name import NAMES, SAMPLE, federation_of
from composing import FILES
from sampling import others_slow
from torch import nn
from torch.nn import functional as F

from flfast.output.callbacks.final_weights import FinalWeights
from flfast.output.results.table import read_rows


def model():
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double()


def read(path):
    return torch.load(path, weights_only=True)


def loss(weights, data, client):
    """Loss of saved weights on a client's validation examples."""
    loaded = model().eval()
    loaded.load_state_dict(weights)
    indices = data.splits["val"].indices_of(client)
    logits = loaded(data.examples.inputs[indices].double())
    return F.cross_entropy(logits, data.examples.targets[indices]).item()


@pytest.mark.parametrize("name", others_slow(NAMES, SAMPLE))
def test_saved_models_are_those_that_were_measured(make_data, make_federation, name):
    options = {"sizes": (12, 9, 8), "split": (0.25, 0.25), "rounds": 2, "eval_every": 1}
    federation = federation_of(make_data, make_federation, name, model(), **options)
    federation.callbacks = [FinalWeights(max_personal=3, model=None)]
    federation.run()
    found = federation.engine.evaluate(federation.server, federation.plans(2, []))
    folder = federation.run_dir
    assert (folder / "model.pt").exists() == ("val" in found)
    assert (folder / "personal").exists() == ("personal_val" in found)
    if "val" in found:
        for client, expected in enumerate(found["val"].values["loss"].tolist()):
            weights = read(folder / "model.pt")
            assert loss(weights, federation.data, client) == pytest.approx(expected)
    if "personal_val" in found:
        for client, expected in enumerate(found["personal_val"].values["loss"].tolist()):
            weights = read(folder / "personal" / f"{client}.pt")
            if federation.algorithm.predict is not None:  # more than the model's own leaves
                assert weights.keys() > model().state_dict().keys()
                continue
            assert loss(weights, federation.data, client) == pytest.approx(expected)
    own = name in {"fedas", "pfl_da"}  # clients predict with own versions of what is shared
    if (folder / "shared.pt").exists() and not federation.algorithm.predict and not own:
        assert_shared(folder)


def assert_shared(folder):
    """Personal models have the leaves of `shared.pt`, which is no complete model."""
    shared = read(folder / "shared.pt")
    own = {leaf for leaf in shared if leaf in model().state_dict()}
    assert len(own) < len(model().state_dict())
    for weights in map(read, (folder / "personal").iterdir()):
        assert all(torch.equal(weights[leaf], shared[leaf]) for leaf in own)


def test_what_a_server_has_instead_of_a_model_is_saved(make_data, make_federation):
    def shared(name):
        options = {"sizes": (4, 3, 2), "rounds": 2}
        federation = federation_of(make_data, make_federation, name, model(), **options)
        federation.callbacks = [FinalWeights(max_personal=0, model=None)]
        federation.run()
        return federation.server, read(federation.run_dir / "shared.pt")

    server, found = shared("ifca")
    torch.testing.assert_close(
        found["models/params/0.weight"], server["models"]["params"]["0.weight"]
    )
    server, found = shared("fedproto")
    torch.testing.assert_close(found["prototypes"], server["prototypes"])


@pytest.mark.parametrize(("limit", "num"), [(None, 3), (3, 3), (2, 0), (0, 0)])
def test_many_personal_models_are_saved_on_request(make_data, make_federation, caplog, limit, num):
    caplog.set_level("INFO")
    federation = federation_of(make_data, make_federation, "ditto", model(), sizes=(4, 3, 2))
    federation.callbacks = [FinalWeights(max_personal=limit, model=None)]
    federation.run()
    assert len(list(federation.run_dir.glob("personal/*.pt"))) == num
    assert ("the models of 3 clients are not saved" in caplog.text) == (num == 0)


@pytest.mark.slow
def test_every_rank_saves_the_models_of_its_clients(flfast_run):
    words = ("experiment=quick", "algorithm=ditto", *FILES, "client_states=disk")
    words = (*words, "engine=eager", "batch_size=50")
    one = flfast_run(*words, run_dir="one")
    two = flfast_run(*words, "strategy=ddp", "trainer.devices=2", run_dir="two")
    names = {f"{client}.pt" for client in range(10)}
    for folder in (one, two):
        assert {path.name for path in (folder / "personal").iterdir()} == names
    for name in names:
        torch.testing.assert_close(read(one / "personal" / name), read(two / "personal" / name))


@pytest.mark.slow
def test_a_sweep_says_which_models_its_results_are_of(flfast_run, capsys):
    words = ("experiment=quick", "rounds=1", "callbacks=none", "engine=eager", "batch_size=50")
    folder = flfast_run("-m", "algorithm=fedavg,ditto,local", *words, run_dir="sweep")
    table = read_rows(folder / "comparison.csv")
    columns = ["val/accuracy", "personal_val/accuracy", "personal_val/accuracy"]
    assert [row["optimized"] for row in table] == columns
    for row, column in zip(table, columns, strict=True):
        assert float(row[column]) > 0
    assert table[0]["personal_val/accuracy"] == table[2]["val/accuracy"] == ""
    assert table[1]["val/accuracy"] != ""
    assert "optimized" in capsys.readouterr().out


@pytest.mark.slow
def test_no_rank_loses_the_models_of_another(flfast_run):
    """A finished run that begins its end again, on two ranks: nothing else is in step with it."""
    words = (
        *(
            "experiment=quick",
            "algorithm=fedamp",
            "model.hidden=[8]",
            "rounds=1",
            "callbacks=none",
        ),
        *("strategy=ddp", "trainer.devices=2", "checkpoint.every=1"),
        "+callbacks.weights={_target_: flfast.output.callbacks.final_weights.FinalWeights,"
        " max_personal: 20, model: null}",
    )
    folder = flfast_run(*words)
    models = {path.name: path.read_bytes() for path in (folder / "personal").iterdir()}
    assert len(models) == 10
    for more in ("rounds=1", "eval_every=2", "rounds=2"):  # unchanged, its end again, a round
        flfast_run(*words, "resume=auto", more)
        found = {path.name: path.read_bytes() for path in (folder / "personal").iterdir()}
        assert found.keys() == models.keys()
        assert (found == models) is (more != "rounds=2")
