"""A LightningModule as a run's model: what of it acts, and what is refused or named."""

import logging

import lightning as L
import lightning_modules as modules
import pytest
import torch
from composing import FILES
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from torch import nn

import flfast
from docs.watched_rounds import named as algorithm_named
from flfast.algorithms.contract.own_steps import refused_by
from flfast.algorithms.kit.keep_local import keep_local
from flfast.setup.lightning_model import (
    check_forward_alone,
    check_steps,
    hook_in_steps,
    prepared,
)
from flfast.state.weights import read_weights


class Net(L.LightningModule):
    """A forward alone."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, inputs):
        return self.net(inputs)


def with_methods(base=modules.Plain, **methods):
    return type("Lit", (base,), methods)()


@pytest.fixture
def quick(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("rounds=1", "local_epochs=1", "batch_size=100", "trainer.devices=1", "callbacks=none")
    return lambda *more, **objects: flfast.run(*words, *more, **objects)


def test_a_module_is_set_up_once(quick):
    calls = []

    class Late(modules.Plain):
        def setup(self, stage):
            calls.append(stage)
            self.net = nn.Linear(64, 10)

        def configure_model(self):
            calls.append("configure_model")

        def prepare_data(self):
            calls.append("prepare_data")

        def teardown(self, stage):
            calls.append("teardown")

        def training_step(self, batch, batch_idx):
            return nn.functional.cross_entropy(self.net(batch[0].flatten(1)), batch[1])

    run = quick("engine=eager", "data=digits", "rounds=2", folder="run", model=Late())
    assert calls == ["fit", "configure_model"]
    assert run.history["train/loss"].iloc[-1] < 2.2


def test_what_is_not_called_is_named_with_the_reason(caplog):
    caplog.set_level(logging.INFO)
    methods = (
        "train_dataloader",
        "on_predict_end",
        "teardown",
        "on_test_model_eval",
        "prepare_data",
    )
    prepared("model=x", with_methods(**{n: lambda self, *_: self.net for n in methods}))
    said = caplog.text
    assert "not called: prepare_data, train_dataloader, since the examples are those" in said
    assert "not called: on_predict_end, since predict_step alone predicts" in said
    assert "teardown" in said
    assert "on_test_model_eval" in said


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"configure_sharded_model": lambda self: self.net}, "allowed: configure_model"),
        ({"training_step": lambda self, dataloader_iter: None}, r"allowed: \(batch, batch_idx\)"),
        (
            {"configure_callbacks": lambda self: ModelCheckpoint()},
            "ModelCheckpoint: checkpoints a",
        ),
        ({"setup": lambda self, stage: 1 / 0}, "^model=x: ZeroDivisionError"),
        ({"setup": lambda self, stage: self.freeze()}, "has no parameters to train"),
        (
            {"setup": lambda self, stage: setattr(self, "lazy", nn.LazyLinear(3))},
            "its layer is lazy",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(methods, message):
    with pytest.raises(flfast.ConfigError, match=message):
        prepared("model=x", with_methods(**methods))


def test_a_module_with_loaders_is_its_own_data(quick):
    run = quick("partition=iid", "partition.num_clients=4", folder="run", model=BoringModel())
    assert run.history["train/loss"].iloc[-1] > 0
    other = ("data=synthetic", "data.shape=[32]", "partition=iid")
    with pytest.raises(flfast.ConfigError, match="linear"):  # whose batches are pairs
        quick(*other, folder="other", model=BoringModel())


def test_hooks_of_a_datamodule_are_named(caplog):
    class Data(L.LightningDataModule):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return batch

        def state_dict(self):
            return {"seen": 3}

    caplog.set_level(logging.INFO)
    module = prepared("model=x", with_methods(on_fit_end=lambda self: self.net))
    assert hook_in_steps(module, Data()) == "the module has its own on_fit_end"
    plain, hook = prepared("model=x", modules.Plain()), "on_before_batch_transfer"
    assert hook_in_steps(plain, Data()) == f"the DataModule has its own {hook}"
    assert hook_in_steps(plain, None) is None
    assert "data=Data: not called: state_dict" in caplog.text


def test_torch_compile_is_left_out_and_named(caplog):
    caplog.set_level(logging.INFO)

    def setup(self, _):
        self.net = torch.compile(self.net)

    found = prepared("model=x", with_methods(setup=setup))
    assert read_weights(found)["params"].keys() == read_weights(modules.Plain())["params"].keys()
    assert "torch.compile of net is left out" in caplog.text


def test_a_module_of_another_package_is_refused():
    other = pytest.importorskip("pytorch_lightning").LightningModule
    lit = with_methods(other, training_step=lambda self, batch: batch)
    with pytest.raises(flfast.ConfigError, match=r"allowed: one of lightning\.pytorch"):
        check_forward_alone("model=x", lit)


def test_a_module_without_a_step_is_the_network_in_it(quick, caplog):
    lit = Net()
    found = quick("engine=fused", *FILES, folder="lit", model=lit)
    with caplog.at_level(logging.WARNING):
        inner = quick("engine=fused", *FILES, folder="net", model=lit.net)
    weights = [torch.load(run.folder / "model.pt") for run in (found, inner)]
    assert all(torch.equal(*pair) for pair in zip(*(w.values() for w in weights), strict=True))
    assert "forward alone" not in caplog.text


def test_hooks_of_a_module_without_a_step_are_named(caplog):
    lit = with_methods(
        Net, validation_step=lambda self, *_: self.net, on_fit_start=lambda self: self.net
    )
    check_forward_alone("model=x", lit)
    assert "its forward alone is called, not on_fit_start, validation_step" in caplog.text


@pytest.mark.parametrize(
    ("name", "why"),
    [
        *((name, None) for name in ("fedavg", "fedopt", "fedper", "fedbn", "lg_fedavg", "fedexp")),
        ("fedprox", "has a local objective of its own"),
        ("fedsam", "has a local objective of its own"),
        ("scaffold", "corrects gradients"),
        ("ifca", "measures examples"),
        ("fedcm", "corrects gradients"),
        ("fedrep", "trains parts of the model"),
        ("fedbabu", "trains parts of the model"),
    ],
)
def test_by_hand_only_start_and_end_of_local_training_count(name, why):
    model = nn.Sequential(nn.Linear(13, 17), nn.Tanh(), nn.Linear(17, 6))
    algorithm, initial = algorithm_named(name, model), read_weights(model)
    assert refused_by(algorithm, initial) == why
    config = flfast.compose()
    check_steps(algorithm, initial, config, by_hand=False, several=False)
    if why is not None:
        with pytest.raises(flfast.ConfigError, match=f"{why}, and the module optimizes by hand"):
            check_steps(algorithm, initial, config, by_hand=True, several=True)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "trainer.gradient_clip_val=0.5",
            r"the module optimizes by hand; allowed: null, and self",
        ),
        ("trainer.accumulate_grad_batches=2", "the module optimizes by hand; allowed: 1, and"),
    ],
)
def test_by_hand_the_trainer_neither_clips_nor_accumulates(word, message):
    model = nn.Sequential(nn.Linear(13, 6))
    algorithm, initial = algorithm_named("fedavg", model), read_weights(model)
    with pytest.raises(flfast.ConfigError, match=f"^{word}: {message}"):
        check_steps(algorithm, initial, flfast.compose(word), by_hand=True, several=False)
    check_steps(algorithm, initial, flfast.compose(word), by_hand=False, several=False)


def test_a_wrapper_has_no_objective_of_its_own():
    model = nn.Sequential(nn.Linear(13, 17), nn.BatchNorm1d(17), nn.Linear(17, 6))
    initial = read_weights(model)
    wrapped = keep_local(
        algorithm_named("fedavg", model),
        {"params": {n: initial["params"][n] for n in ("1.weight", "1.bias")}, "buffers": {}},
    )
    assert refused_by(wrapped, initial) is None


def test_a_run_of_such_a_module_is_refused_before_it_trains(quick):
    words = ("data=synthetic", "data.shape=[8]", "data.num_classes=3", "algorithm=fedprox")
    with pytest.raises(flfast.ConfigError, match="fedprox has a local objective of its own, and"):
        quick(*words, folder="run", model=modules.TwoOptimizers())


def test_a_family_of_such_modules_is_refused(quick):
    member = "{_target_: lightning_modules.%s}"
    family = f"model.of=[{member % 'Plain'}, {member % 'Dropped'}]"
    words = ("task=module", "optimizer=module", "data=synthetic", "data.shape=[8]")
    with pytest.raises(flfast.ConfigError, match=r"model\.of: members are LightningModules"):
        quick(*words, "data.num_classes=3", "algorithm=local", "model=family", family)
