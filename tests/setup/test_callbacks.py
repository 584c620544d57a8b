"""Each callback that Lightning ships works in a run, or is refused before training, with why."""

import inspect
import logging

import pytest
import torch
from lightning.pytorch import callbacks as shipped
from lightning.pytorch.callbacks import Callback, LambdaCallback
from sampling import others_slow, rotating

import flfast
from flfast.config.composition import compose, without_hydra
from flfast.config.own import OWN, Own
from flfast.setup.callbacks import build_callbacks

NAMES = [
    name
    for name, kind in vars(shipped).items()
    if inspect.isclass(kind) and issubclass(kind, Callback)
]
OPTIONS = {
    "EarlyStopping": "monitor: val/loss",
    "GradientAccumulationScheduler": "scheduling: {_target_: tests_of_callbacks.by_epoch}",
    "ModelPruning": "pruning_fn: l1_unstructured, amount: 0.5",
    "OnExceptionCheckpoint": "dirpath: .",
    "StochasticWeightAveraging": "swa_lrs: 0.1",
    "ThroughputMonitor": "batch_size_fn: {_target_: hydra.utils.get_method, path: builtins.len}",
    "Timer": "duration: '00:01:00:00'",
}
WORK = {
    *("Callback", "LambdaCallback", "EarlyStopping", "ModelSummary", "RichModelSummary", "Timer"),
    *("TQDMProgressBar", "RichProgressBar", "WeightAveraging", "EMAWeightAveraging"),
}
QUICK = ("rounds=2", "local_epochs=1", "batch_size=100", "trainer.devices=1", "callbacks=none")
BARS = "trainer.enable_progress_bar=true"


def node(name):
    options = f", {OPTIONS[name]}" if name in OPTIONS else ""
    return f"+callbacks.x={{_target_: lightning.pytorch.callbacks.{name}{options}}}"


@pytest.fixture
def quick(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests_of_callbacks.py").write_text(
        "from lightning.pytorch.callbacks import Callback, LambdaCallback\n\n\n"
        "def by_epoch():\n    return {1: 2}\n\n\n"
        "def logs():\n"
        "    def log(trainer, module, *_):\n"
        "        module.log('mine', 1.0)\n"
        "        module.log_dict({'others': 2.0})\n\n"
        "    return LambdaCallback(on_train_batch_end=log)\n\n\n"
        "class Column(Callback):\n"
        "    def on_round_trained(self, federation, row):\n"
        "        row['mine/rounds'] = len(federation.history)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return lambda *words, **objects: flfast.run(*QUICK, *words, **objects)


@pytest.mark.parametrize("name", rotating([name for name in NAMES if name not in WORK], every=4))
def test_what_cannot_work_is_refused_with_our_reason(quick, name, tmp_path):
    with pytest.raises(flfast.ConfigError) as refused:
        quick(node(name), BARS, folder="run")
    said = str(refused.value)
    assert said.startswith(f"callbacks.x: {name}: ")
    assert "allowed: " in said or "its state cannot be loaded" in said
    for circle in ("enable_checkpointing", "Trainer(logger", "no logger", "set callbacks"):
        assert circle not in said
    assert not (tmp_path / "run" / "metrics.csv").exists()


@pytest.mark.parametrize("name", others_slow(sorted(WORK), ["Timer"]))
def test_what_is_not_refused_works(quick, name):
    run = quick(node(name), BARS, "trainer.limit_val_batches=1.0")
    assert len(run.history) == 3


def test_progress_bars_name_the_option_that_shows_them(quick):
    with pytest.raises(flfast.ConfigError, match=r"allowed: trainer\.enable_progress_bar=true"):
        quick(node("TQDMProgressBar"))


def test_averages_are_of_one_client_and_not_of_those_before(make_data, make_federation):
    """The upload is the mean of the weights after each step, whoever trained before."""

    def uploads(*clients):
        torch.manual_seed(0)  # noqa: TID251 - a test's own model
        model, found = torch.nn.Linear(5, 3), []
        federation = make_federation(
            make_data([6, 9]), model, trainer={"callbacks": [shipped.WeightAveraging()]}
        )
        site = federation.engine.site
        read = site.module.read
        site.module.read = lambda: found.append(read()) or found[-1]
        federation.engine.train(
            federation.server, list(clients), federation.plans(1, []), on_client=lambda _: None
        )
        return found[-1]["params"]

    alone, after = uploads(1), uploads(0, 1)
    assert all(torch.equal(alone[name], after[name]) for name in alone)


class Misspelt(Callback):
    """A hook that is none, and hooks that no run calls."""

    def on_rounds_end(self, federation, row, clients):
        pass

    def on_predict_start(self, trainer, module):
        pass

    def on_validation_end(self, trainer, module):
        pass


def test_hooks_that_are_never_called_are_named(caplog):
    config = without_hydra(compose(["callbacks=none", "logger=none"]))
    own = Own(callbacks={"x": Misspelt(), "y": LambdaCallback(on_sanity_check_start=print)})
    config.callbacks = {name: {"_target_": name, OWN: ""} for name in own.callbacks}
    with caplog.at_level(logging.WARNING):
        assert build_callbacks(config, None, (), own) == [*own.callbacks.values()]
    for said in (
        "callbacks.x: its on_rounds_end is no hook; did you mean on_round_end?",
        "callbacks.x: its on_predict_start is never called in a run",
        "callbacks.x: its on_validation_end is never called without trainer.limit_val_batches",
        "callbacks.y: its on_sanity_check_start is never called in a run",
    ):
        assert said in caplog.text
    caplog.clear()
    config.trainer.limit_val_batches = 1.0
    build_callbacks(config, None, (), own)
    assert "on_validation_end" not in caplog.text


def test_what_a_callback_logs_is_named_once(quick, caplog):
    quick("+callbacks.x={_target_: tests_of_callbacks.logs}", "engine=auto")
    for name in ("mine", "others"):
        assert caplog.text.count(f"log({name!r})") == 1


def test_what_a_callback_adds_to_a_row_is_a_column(quick):
    run = quick("+callbacks.x={_target_: tests_of_callbacks.Column}", "engine=eager")
    assert run.history["mine/rounds"].tolist()[1:] == [1, 2]
