"""The task forecasting: engines and stacks agree with both losses and both models."""

from copy import deepcopy
from functools import partial

import pytest
from engine_runs import assert_engines_agree
from sampling import others_slow

import flfast
from flfast.datamodules.federated import FederatedDataModule, Split
from flfast.datamodules.fetching import Loading
from flfast.datamodules.partitions.natural import natural
from flfast.state.plan import Batching
from flfast.zoo.datamodules.sources.loads import Loads
from flfast.zoo.models.forecaster import Forecaster

CUT = {"window": 48, "horizon": 24, "stride": 24, "season": 24, "test_fraction": 0.3}


@pytest.fixture(scope="module", params=others_slow(["mse", "mae"], ["mse"]))
def meters(request):
    data = FederatedDataModule(
        partial(Loads, num_clients=3, weeks=3, noise=0.1, loss=request.param, **CUT),
        partial(natural, group_size=1, rest="smaller"),
        seed=0,
        split=Split(0.0, 0.0),
        loading=Loading(eval_batch_size=4),
    )
    data.setup()
    return data


def forecaster(hidden=None):
    options = {"horizon": 24, "season": 24, "hidden": hidden, "layers": 1}
    return Forecaster(input_shape=(1, 48), num_classes=24, **options)


@pytest.mark.parametrize("stack", others_slow([1, 3], [3]))
def test_engines_agree_on_a_linear_model(meters, make_federation, stack):
    options = {"rounds": 2, "batching": Batching(4), "trainer": {"precision": "64-true"}}
    found = assert_engines_agree(
        lambda: make_federation(meters, forecaster().double(), lr=0.01, **options), stack=stack
    )
    clients = found.engine.evaluate(found.server, found.plans(2, []))["local"].values["mase"]
    assert found.history[-1]["local/mase_worst10"] == pytest.approx(clients.max().item())


def test_engines_agree_on_an_lstm(meters, make_federation):
    model = forecaster(hidden=4)

    def make():
        return make_federation(meters, deepcopy(model), rounds=2, batching=Batching(4))

    assert_engines_agree(make, tol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [(), ("model.hidden=64", "optimizer.lr=0.01")], ids=["linear", "lstm"]
)
def test_the_experiment_beats_the_seasonal_naive_forecast(words, tmp_path):
    words = ("experiment=forecasting", "strategy=single", "callbacks=none", *words)
    found = flfast.run(*words, folder=tmp_path / "run").history["local/mase"]
    assert 1 < found.iloc[0] < 1.1
    assert found.iloc[-1] < 0.75
