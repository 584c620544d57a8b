import pytest
import torch
from algorithms_by_name import algorithm_of
from engine_runs import mlp, ran, with_batchnorm
from torch import nn

from flfast.algorithms.kit.keep_local import keep_local
from flfast.engines.eager import EagerTraining
from flfast.lit.batchnorm import batchnorm_layers, batchnorm_weights
from flfast.state.plan import Batching
from flfast.state.tree import num_bytes, part_of
from flfast.state.weights import read_weights


class Block(nn.Module):
    """Nested BatchNorm layers of three types, with misleading names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
        self.bn_like_name = nn.Linear(2, 2)
        self.deep = nn.ModuleList([nn.Sequential(nn.BatchNorm1d(2))])
        self.sync = nn.SyncBatchNorm(2)


def test_batchnorm_is_found_by_type_at_any_depth():
    found = {name for name, _ in batchnorm_layers(Block())}
    assert found == {"first.1", "deep.0.0", "sync"}


def test_batchnorm_weights_are_those_of_batchnorm_layers_only():
    model = Block()
    found = batchnorm_weights(model, read_weights(model))
    layers = {"first.1", "deep.0.0", "sync"}
    assert {name.rpartition(".")[0] for name in found["params"]} == layers
    assert {name.rpartition(".")[0] for name in found["buffers"]} == layers
    assert len(found["params"]) == 6
    assert len(found["buffers"]) == 9


def test_a_model_may_be_a_single_batchnorm_layer():
    model = nn.BatchNorm1d(3)
    assert set(batchnorm_weights(model, read_weights(model))["params"]) == {"weight", "bias"}
    assert torch.equal(read_weights(model)["params"]["weight"], torch.ones(3))


COMM = ("comm/down_bytes", "comm/up_bytes")


@pytest.fixture
def exchanged(make_data, make_federation):
    """(additional bytes down, additional bytes up, clients) of a round that recalibrates."""

    def exchanged(algorithm, model):
        plain, measured = (
            ran(
                make_federation(
                    make_data([6, 4, 8, 5, 7]),
                    model,
                    algorithm=algorithm,
                    batching=Batching(2, drop_single=True),
                    sampling={"dropout": 0.4},
                    recalibrate=recalibrate,
                ),
                EagerTraining,
            ).history[1]
            for recalibrate in (False, True)
        )
        assert measured["cohort/dropped"]
        return *(measured[c] - plain[c] for c in COMM), measured["cohort/clients"]

    return exchanged


STATISTICS = 2 * 8 * 4 + 8  # mean and variance of 8 features, and a counter


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_recalibration_sends_the_model_down_and_statistics_up(exchanged, name):
    """Dropped clients do not take part, and control variates are not sent."""
    model = with_batchnorm()
    options = {"momentum": 0.0, "nesterov": False, "local_optimizer_state": "reset"}
    algorithm = algorithm_of(name, model, **(options if name == "scaffold" else {}))
    down, up, clients = exchanged(algorithm, model)
    assert down == clients * num_bytes(read_weights(model))
    assert up == clients * STATISTICS


def test_recalibration_does_not_send_local_leaves(exchanged):
    model = with_batchnorm()
    down, up, clients = exchanged(algorithm_of("fedper", model), model)
    weights = read_weights(model)
    head = part_of(weights["params"], {"3.weight": 0, "3.bias": 0})
    assert down == clients * (num_bytes(weights) - num_bytes(head))
    assert up == clients * STATISTICS


def test_recalibration_without_shared_statistics_sends_nothing(exchanged):
    assert exchanged(algorithm_of("fedavg", mlp()), mlp())[:2] == (0, 0)
    model = with_batchnorm()
    own = batchnorm_weights(model, read_weights(model))
    assert exchanged(keep_local(algorithm_of("fedavg", model), own), model)[:2] == (0, 0)
