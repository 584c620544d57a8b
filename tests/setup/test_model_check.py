"""The trial in training mode leaves everything as it is; what models are offered."""

import numpy as np
import pytest
import torch
from torch import nn

import flfast
from flfast.config.errors import ConfigError
from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.fetching import Loading
from flfast.datamodules.splits import Split
from flfast.datamodules.transforms import BatchTransform
from flfast.setup.model_check import check_events, model_offers, try_training
from flfast.state.injection import call_with


@pytest.mark.parametrize("bn", ["aggregate", "frozen"])
@pytest.mark.parametrize("sizes", [(6, 4), (1, 4)], ids=str)
def test_weights_buffers_and_seeds_stay_as_they_are(make_data, sizes, bn):
    data = make_data(sizes)
    width = data.examples.input_shape[0]
    norm = nn.utils.parametrizations.spectral_norm(nn.Linear(width, 8))
    model = nn.Sequential(norm, nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, data.num_classes))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seeds = torch.get_rng_state()
    try_training("net", model, data, bn=bn)
    assert torch.equal(torch.get_rng_state(), seeds)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert all(module.training for module in model.modules())


def test_frozen_batchnorm_is_in_evaluation_mode_as_in_training(make_data):
    class OnlyFrozen(nn.BatchNorm1d):
        def forward(self, x):
            if self.training:
                raise RuntimeError("would be updated")
            return super().forward(x)

    data = make_data((6, 4))
    width = data.examples.input_shape[0]
    model = nn.Sequential(OnlyFrozen(width), nn.Linear(width, data.num_classes))
    try_training("net", model, data, bn="frozen")
    with pytest.raises(ConfigError, match="model=net: RuntimeError: would be updated"):
        try_training("net", model, data, bn="aggregate")


def offered(model, inputs, *, task="classification", num_classes=4):
    language = task == "language"
    targets = torch.zeros(inputs.shape if language else len(inputs), dtype=torch.int64)
    examples = Examples(
        inputs, targets, num_classes, tuple(inputs.shape[1:]), BatchTransform(), task=task
    )
    return call_with(model, **model_offers(model, examples))


@pytest.mark.parametrize(
    ("inputs", "task", "num_tokens"),
    [
        (torch.tensor([[3, 0], [8, 1]]), "classification", 9),
        (torch.tensor([[3, 0], [2, 1]]), "language", 4),
        (torch.rand(2, 3), "classification", 0),
        (torch.from_numpy(np.full((2, 1, 4, 4), 255, dtype=np.uint8)), "classification", 0),
    ],
)
def test_the_vocabulary_of_the_inputs(inputs, task, num_tokens):
    assert offered(lambda num_tokens: num_tokens, inputs, task=task) == num_tokens


def test_a_model_gets_what_it_asks_for():
    found = offered(lambda input_shape, task: (input_shape, task), torch.rand(2, 3))
    assert found == ((3,), "classification")


def survival_data(events):
    """Data of 4 clients with 10 examples each, of which `events` says who has an event."""
    times = torch.arange(1.0, 41)
    targets = torch.stack([times, torch.as_tensor(events).float()], dim=1)
    examples = Examples(torch.randn(40, 3), targets, 1, task="survival")
    data = FederatedDataModule(
        lambda: examples,
        lambda num_examples: np.arange(num_examples) // 10,
        seed=0,
        split=Split(0.2, 0.2),
        loading=Loading(eval_batch_size=4),
    )
    data.setup()
    return data


def test_survival_without_an_event_in_training_is_refused():
    nothing = survival_data(np.zeros(40))
    with pytest.raises(ConfigError, match="none of 24 training examples has an event"):
        check_events(nothing)
    event = np.zeros(40)
    event[nothing.splits["val"].indices] = 1  # of validation alone
    with pytest.raises(ConfigError, match="none of 24 training examples has an event"):
        check_events(survival_data(event))


def test_clients_and_sets_without_an_event_are_named(caplog):
    event = np.zeros(40)
    event[survival_data(event).splits["train"].indices_of(2)] = 1
    check_events(survival_data(event))
    assert [line[:30] for line in caplog.messages] == [
        "3 clients train without an eve",
        "the central test set has no ev",
        "the val set has no event: its ",
        "the local test set has no even",
    ]
    caplog.clear()
    check_events(survival_data(np.ones(40)))
    assert not caplog.messages


def test_a_run_of_survival_without_events_is_refused(tmp_path):
    """It ended with a loss of 0 and NaN, and no word."""
    data = torch.rand(40, 3), torch.stack([torch.rand(40), torch.zeros(40)], dim=1)
    words = ("task=survival", "partition.num_clients=2", "trainer.devices=1", "rounds=1")
    with pytest.raises(flfast.ConfigError, match=r"none of .* training examples has an event"):
        flfast.run(*words, data=data, model=torch.nn.Linear(3, 1), folder=tmp_path)
