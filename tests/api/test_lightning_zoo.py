"""Odd LightningModules: each trains as Lightning trains it, or is refused in one line."""

import lightning_zoo as zoo
import pytest
import torch
from lightning_fits import ALONE, QUIET, SMALL, ended, engine_of, fit_alone, weights
from sampling import others_slow

import flfast
from flfast.config.errors import ConfigError

REFUSED = {
    "GradientHook": "has a gradient hook",
    "ShortLazy": "has no values yet",
    "ReadsData": "configure_model reads self.trainer",
    "Doubles": "float64, and trainer.precision=32-true",
    "MixedTypes": "float64, and trainer.precision=32-true",
    "ComplexParameter": "is complex",
    "ReturnsFloat": "returns a float; allowed: a loss",
    "ReturnsLosses": "a loss of shape .*; allowed: one number",
    "ReturnsWithoutGradient": "a loss without a gradient",
    "DictWithoutLoss": "the 'loss' key needs to be present",
    "NoOptimizer": "gives no optimizer",
    "NoSteps": "gives no optimizer",
    "TwoAutomatic": "Set `self.automatic_optimization = False`",
    "OwnModelCheckpoint": "allowed: checkpoint.every, checkpoint.keep_best",
}
"""Parts of the messages."""
TRACED = "the model cannot be traced"
OTHER_END = "traced steps end at other weights"
EAGER = {
    "ChangedLocalBuffer": "changes scale",
    "AveragedCopy": "on_train_batch_end",
    "Teacher": "on_train_batch_end",
    "MomentumNone": TRACED,
    "Branching": TRACED,
    "ItemInStep": TRACED,
    "Checkpointed": "computes layers again",
    "Reentrant": OTHER_END,
    "Recurrent": "recurrent",
    "Counter": "changes calls",
    "AnnealedWeight": "changes beta",
    "KeepsOutputs": "changes last_loss",
    "ListOfOutputs": "on_train_epoch_end",
    "PythonRandom": "Python's random",
    "NumpyRandom": "NumPy's",
    "OwnGenerator": "changes generator",
    "ByEpoch": "current_epoch",
    "ByStep": "global_step",
    "ByProgress": "self.trainer",
    "LogsInHooks": "on_before_optimizer_step",
    "MetricInLoss": "NaN without metric objects",
    "ByLogger": "batch_idx",
    "ReturnsDict": "on_train_batch_end",
    "ReturnsNothing": "batch_idx",
    "ReturnsOneElement": TRACED,
    "LBFGS": "by torch.optim only",
    "AmsGrad": "by torch.optim only",
    "RMSprop": "by torch.optim only",
    "Maximizes": "by torch.optim only",
    "Adadelta": "by torch.optim only",
    "NoRate": "not made of its parameters and options",
    "PartOnly": "treats parameters differently",
    "Groups": "treats parameters differently",
    "DecayOfMatrices": "treats parameters differently",
    **dict.fromkeys(("Lambda", "WarmUp", "Chained", "Sequential", "OneCycle"), "schedulers"),
    **dict.fromkeys(("Cyclic", "EverySecond", "PlateauOfTraining"), "schedulers"),
    "SteppedByHand": "lr_scheduler_step",
    **dict.fromkeys(("Adversarial", "AccumulatesByHand", "AlternatesByHand"), "by hand"),
    "OwnOptimizerStep": "optimizer_step",
    "OwnZeroGrad": "optimizer_zero_grad",
    "OwnBackward": "backward",
    "AfterBackward": "on_after_backward",
    "Projects": "on_train_batch_end",
    "StopsABatch": "on_train_batch_start",
    "StopsTheFit": "on_train_epoch_end",
    "OwnEarlyStopping": "configure_callbacks",
    "OwnCallback": "configure_callbacks",
    "MovesBatches": "transfer_batch_to_device",
    "Augments": "on_after_batch_transfer",
    "ReadsTrainer": "on_train_start",
}
"""Parts of the reasons why `engine=auto` trains eagerly; all others are fused."""
RUNS = [name for name in zoo.ZOO if name not in REFUSED]
FUSED = [name for name in RUNS if name not in EAGER]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Lightning warns of some


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a new module of the zoo."""
    monkeypatch.chdir(tmp_path)

    def run(make, *words, **objects):
        small = () if objects else SMALL
        return flfast.run(*small, *QUIET, *words, model=zoo.fresh(make), **objects)

    return run


@pytest.mark.parametrize("name", others_slow(RUNS, ["LBFGS", "Counter"]))
def test_one_client_and_one_round_are_trainer_fit(run, monkeypatch, name):
    """To the last bit, where the order of examples is the same."""
    found = ended(monkeypatch)
    run(zoo.ZOO[name], "engine=eager", "rounds=1", "batch_size=6", *ALONE)
    fit_alone(expected := zoo.fresh(zoo.ZOO[name]), {})
    last = found[-1].done.weights
    own = {**last["params"], **last["buffers"]}
    for key, value in expected.state_dict().items():
        plain = key.replace("_orig_mod.", "")
        assert plain not in own or torch.equal(value, own[plain]), key


@pytest.mark.parametrize("name", others_slow([*REFUSED], ["ReturnsLosses", "ReadsData"]))
def test_others_are_refused_in_one_line(run, name):
    with pytest.raises(ConfigError, match=REFUSED[name]) as error:
        run(zoo.ZOO[name])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", others_slow(FUSED, ["Unused", "GradientPenalty"]))
def test_engines_are_equal(run, name):
    fused, eager = run(zoo.ZOO[name]), run(zoo.ZOO[name], "engine=eager")
    assert engine_of(fused).startswith("fused")
    for key, value in weights(eager).items():
        assert torch.allclose(value, weights(fused)[key], rtol=1e-4, atol=1e-5), key
    missing = {*eager.history.columns} - {*fused.history.columns}
    log = (fused.folder / "train.log").read_text()
    assert all(column in log for column in missing)


@pytest.mark.parametrize("name", others_slow([*EAGER], ["NoRate"]))
def test_what_trains_eagerly_says_why(run, name):
    found = engine_of(run(zoo.ZOO[name], "rounds=1", "local_epochs=1"))
    assert found.startswith("eager") and EAGER[name] in found


@pytest.mark.parametrize("name", others_slow([*zoo.BATCHES], ["sequences"]))
def test_batches(run, name):
    """In memory or through loaders, with both engines where programs can take them."""
    words = ("partition=iid", "partition.num_clients=3", "rounds=1", "local_epochs=1")
    found = {
        engine: run(zoo.BATCHES[name][0], f"engine={engine}", *words, data=zoo.Data(name))
        for engine in ("auto", "eager")
    }
    for key, value in weights(found["eager"]).items():
        assert torch.allclose(value, weights(found["auto"])[key], rtol=1e-4, atol=1e-5), key
    assert found["auto"].history["global/loss"].notna().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TemplateMetrics", "Adversarial", "AveragedCopy"])
def test_ranks_train_their_own_clients(run, name):
    """3 clients on 2 ranks: nothing of a fit waits for another rank, also not `sync_dist`."""
    words = ("engine=eager", "trainer.devices=2")
    one, two = run(zoo.ZOO[name], "engine=eager"), run(zoo.ZOO[name], *words)
    for key, value in weights(one).items():
        assert torch.allclose(value, weights(two)[key], rtol=1e-5, atol=1e-6), key
