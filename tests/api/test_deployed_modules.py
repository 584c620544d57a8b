"""Deployments of a user's LightningModule: numbers of the simulator, and what is refused."""

import re

import pytest
from deployed_runs import SMALL, Nodes, assert_equal_runs, rows_of

import flfast
from flfast.api.deployment import Client, serve
from flfast.channel.wire import Message, pack, unpack
from flfast.config.errors import ConfigError
from flfast.output.results.table import read_history
from flfast.setup.real_clients import Greeting

COLUMNS = (
    *("train/loss", "train/double", "val/loss", "local/loss", "local/acc", "local/acc_std"),
    *("comm/up_bytes", "comm/down_bytes"),
)
DICTS = "+data.collate={_target_:hydra.utils.get_method,path:lightning_sites.as_dicts}"
TEXTS = DICTS.replace("as_dicts", "with_texts")


def words_of(*overrides, model="lightning_modules.Measured"):
    small = (word for word in SMALL if not word.startswith(("model=", "batch_size=")))
    own = "model=lightning", f"model._target_={model}", "data=lightning", "batch_size=7"
    return (*small, *own, "data._target_=lightning_sites.Sites", *overrides)


def deployed(folder, *overrides, num=2, model="lightning_modules.Measured"):
    """A run whose nodes have a DataModule of one client each."""
    words = words_of("partition=whole", "+data.clients=[0]", *overrides, model=model)
    nodes = Nodes(words, num, folder)
    for k in range(num):
        nodes.words = (*words, f"data.clients=[{k}]")
        nodes.clients[k] = nodes.client(k)
    folder = folder / "server"
    return serve(*words, num_clients=num, network=nodes, folder=folder, seeded_noise=True)


def simulated(folder, *overrides, num=2, model="lightning_modules.Measured"):
    """The run with a DataModule of all clients."""
    together = "partition=natural", f"+data.clients={[*range(num)]}", "strategy=single"
    return flfast.run(*words_of(*together, *overrides, model=model), folder=folder / "sim")


@pytest.mark.parametrize(
    ("overrides", "model"),
    [
        (("algorithm=fedavg",), "lightning_modules.Measured"),
        (("algorithm=scaffold", "compression=quantize"), "lightning_modules.Measured"),
        (("algorithm=fedprox", DICTS), "lightning_sites.OfDicts"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (("algorithm=ditto",), "lightning_modules.Measured"),
                (("algorithm=moon",), "lightning_modules.Measured"),
                (("algorithm=fedavgm", "secure=none"), "lightning_modules.TwoOptimizers"),
                (("engine=fused", "engine.stack=1"), "lightning_modules.Plain"),
                (("algorithm=fedavg", "local_epochs=2"), "lightning_modules.ByEpoch"),
                (("algorithm=fedavg", "local_optimizer_state=keep"), "lightning_modules.Dropped"),
            )
        ),
    ],
)
def test_a_deployment_gives_the_simulators_weights_bit_for_bit(tmp_path, overrides, model):
    deployed(tmp_path, *overrides, model=model)
    simulated(tmp_path, *overrides, model=model)
    assert_equal_runs(tmp_path)
    found, expected = (
        read_history(tmp_path / name / "metrics.csv")[-1] for name in ("server", "sim")
    )
    assert [name for name in expected if name not in found and "global" not in name] == []
    for column in COLUMNS:
        assert found.get(column) == expected.get(column), column


def test_validation_samples_are_the_nodes_own(tmp_path):
    deployed(tmp_path, "+data.val=true")
    row = read_history(tmp_path / "server" / "metrics.csv")[-1]
    assert 0 < float(row["val/loss"]) < 5
    assert {row["status"] for (number, _), row in rows_of(tmp_path).items() if number} == {
        "trained"
    }


@pytest.mark.filterwarnings("ignore:Trying to infer the `batch_size`")
@pytest.mark.parametrize(
    ("overrides", "model", "message"),
    [
        ((TEXTS,), "lightning_sites.OfDicts", "node node-1: task=module: a batch has a str"),
        ((), "lightning_sites.Halves", "tried by the server with samples of ones: ValueError"),
    ],
)
def test_what_the_server_cannot_try_is_refused_before_round_1(tmp_path, overrides, model, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        deployed(tmp_path, *overrides, model=model)
    assert not (tmp_path / "server" / "metrics.csv").exists()


ODD = (
    None,
    [],
    "float32 -5",
    "float33 2",
    "save 1",
    "float32 x",
    5,
    {"a": [7]},
    ["int64 99999999999"],
)


def test_a_greeting_of_impossible_samples_is_refused(tmp_path):
    words = words_of("partition=whole", "+data.clients=[0]")
    client = Client(*words, client_id=0, folder=tmp_path)
    facts = unpack(client.answer(pack(Message({"kind": "greeting", "clients": 1})))).facts
    assert Greeting.model_validate(facts).examples.samples == ["float32 8", "int64"]
    for samples in ODD:
        with pytest.raises(ValueError, match="samples"):
            Greeting.model_validate({**facts, "examples": [*facts["examples"][:-1], samples]})
