"""A user's LightningModule as the model of a run: its own step, optimizers, hooks and numbers."""

from copy import deepcopy

import lightning as L
import lightning_modules as modules
import pytest
import torch
from lightning_fits import ALONE, QUIET, SMALL, ended, engine_of, fit_alone, weights
from processes import Command
from sampling import others_slow
from torch.utils.data import DataLoader, TensorDataset

import flfast
from flfast import train
from flfast.state.randomness import seed_torch


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a module, or another model, with the same initial weights each time."""
    monkeypatch.chdir(tmp_path)

    def run(kind, *words, **objects):
        seed_torch(0, "weights of a user")
        return flfast.run(*SMALL, *QUIET, *words, model=kind(), **objects)

    return run


FITS = [
    (modules.Plain, {}),
    (modules.Dropped, {}),
    (modules.ByStep, {}),
    (modules.ByEpoch, {}),
    (modules.ByHand, {}),
    (modules.TwoOptimizers, {}),
    (modules.Hooked, {}),
    (modules.Skipping, {}),
    (modules.Clipped, {}),
    (modules.OwnNames, {}),
    (modules.Plain, {"gradient_clip_val": 0.1}),
    (modules.Plain, {"accumulate_grad_batches": 2}),
    (modules.ByStep, {"precision": "64-true"}),
]


@pytest.mark.filterwarnings("ignore:.training_step. returned .None.")
@pytest.mark.parametrize(("kind", "options"), FITS)
def test_one_client_and_one_round_are_trainer_fit(run, monkeypatch, kind, options):
    """To the last bit, where the order of examples is the same."""
    found = ended(monkeypatch)
    words = [f"trainer.{name}={value}" for name, value in options.items()]
    whole = ("engine=eager", "rounds=1", "batch_size=6", *ALONE)
    run(kind, *whole, *words)
    seed_torch(0, "weights of a user")
    expected = kind()
    fit_alone(expected, options)
    last = found[-1].done.weights
    for name, value in expected.state_dict().items():
        assert torch.equal(value, last["params"][name]), name


ALGORITHMS = ["fedavg", "scaffold", "ditto", "fedprox", "fedsam", "feddyn", "per_fedavg"]
CASES = [(name, engine) for name in ALGORITHMS for engine in ("eager", "fused")]


@pytest.mark.parametrize(
    ("algorithm", "engine"),
    others_slow(CASES, [("scaffold", "eager"), ("ditto", "fused"), ("fedavg", "fused")]),
)
def test_a_module_with_the_loss_of_the_task_is_the_same_as_a_plain_model(run, algorithm, engine):
    words = (f"algorithm={algorithm}", f"engine={engine}", "optimizer=sgd", "optimizer.lr=0.1")
    plain, module = run(modules.Network, *words), run(modules.Plain, *words)
    for name, value in weights(plain).items():
        assert torch.allclose(value, weights(module)[name], rtol=1e-5, atol=1e-7), name
    column = "train/loss"
    assert module.history[column].iloc[-1] == pytest.approx(plain.history[column].iloc[-1])


@pytest.mark.parametrize("kind", [modules.Measured, modules.Contrastive])
def test_engines_are_equal(run, kind):
    eager, fused = run(kind, "engine=eager"), run(kind, "engine=fused")
    for name, value in weights(eager).items():
        assert torch.allclose(value, weights(fused)[name], rtol=1e-4, atol=1e-6), name
    for column in {"train/loss", "train/double"} & {*eager.history.columns}:
        expected = eager.history[column].iloc[-1]
        assert fused.history[column].iloc[-1] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (modules.Annealed, "current_epoch"),
        (modules.Numbered, "batch_idx"),
        (modules.ByRound, "the round"),
        (modules.ByHand, "by hand"),
        (modules.ByEpoch, "schedulers"),
        (modules.Hooked, "on_before_optimizer_step"),
    ],
)
def test_what_programs_do_not_follow_trains_eagerly_and_says_so(run, kind, reason):
    found = engine_of(run(kind, "rounds=1"))
    assert found.startswith("eager") and reason in found
    with pytest.raises(flfast.ConfigError, match=reason):
        run(kind, "rounds=1", "engine=fused")


def test_logged_values_are_columns(run):
    history = run(modules.Measured).history
    last = history.iloc[-1]
    assert last["train/double"] == pytest.approx(2 * last["train/loss"], rel=1e-5)
    for view in ("global", "local"):
        assert 0 <= last[f"{view}/acc"] <= 1 and last[f"{view}/loss"] > 0
        assert 0 <= last[f"{view}/share of 0"] <= 1
    assert last["val/loss"] > 0 and "val/acc" not in history


def test_metric_objects_are_of_each_client_alone(run):
    """Not means over batches, nor over what other clients have shown."""
    words = ("loader.eval_batch_size=2", "split.test=0.3", "rounds=1")
    found, one = run(modules.Measured, *words), run(modules.Measured, "split.test=0.3", "rounds=1")
    assert found.clients["local/acc"].tolist() == one.clients["local/acc"].tolist()


def test_a_scheduler_watches_the_clients_own_validation_examples(run):
    assert engine_of(run(modules.Plateau, "split.val=0.2")).startswith("eager")


@pytest.mark.parametrize(
    "word", ["micro_batch=2", "strategy=dp", "audit=membership", "algorithm=fedlc"]
)
def test_what_needs_losses_of_examples_is_refused(run, word):
    with pytest.raises(flfast.ConfigError) as error:
        run(modules.Plain, word, "trainer.devices=2" if "dp" in word else "rounds=1")
    assert "allowed" in str(error.value) or "use" in str(error.value)


@pytest.mark.slow
def test_ranks_do_not_wait_for_each_others_metrics(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = []
    for num in (1, 2):
        seed_torch(0, "weights of a user")
        words = (*SMALL, f"trainer.devices={num}", "engine=eager")
        found.append(flfast.run(*words, model=modules.Measured(), folder=f"on-{num}"))
    columns = ["train/loss", "global/acc", "local/acc", "val/loss"]
    one, two = (run.history[columns].iloc[-1].tolist() for run in found)
    assert one == pytest.approx(two, rel=1e-5)


def test_a_module_knows_the_round(run):
    modules.ByRound.rounds.clear()
    run(modules.ByRound, "engine=eager", "batch_size=-1", "local_epochs=1", "rounds=3")
    assert [n for n in modules.ByRound.rounds if n] == [n for n in (1, 2, 3) for _ in range(3)]
    assert flfast.round_number(modules.Plain()) == 0


def test_the_users_object_stays_as_it_is(run):
    """A run trains a copy."""
    module = modules.Measured()
    before, kind = deepcopy(module.state_dict()), type(module)
    run(lambda: module, "rounds=1")
    assert type(module) is kind and module._trainer is None
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_run_that_is_killed_in_a_round_goes_on_as_if_it_had_not_been(flfast_run, tmp_path):
    """Two optimizers by hand; what counts is in checkpoints."""
    model = ("model=lightning", "model._target_=lightning_modules.Killed")
    words = (*SMALL, "logger=csv", *model, "rounds=6", "checkpoint.every=1", "trainer.devices=1")
    folder = tmp_path / "killed"
    command = Command(
        train.main, (*words, f"hydra.run.dir={folder}"), tmp_path, {"KILL": "", "COLUMNS": "100"}
    )
    command.end()
    assert not (folder / "model.pt").exists()
    flfast_run(*words, "resume=auto", run_dir="killed")
    assert "resuming after round " in (folder / "train.log").read_text()
    found = folder, flfast_run(*words, run_dir="whole")
    killed, whole = (torch.load(each / "model.pt") for each in found)
    assert all(torch.equal(value, killed[name]) for name, value in whole.items())


@pytest.mark.slow
def test_packed_seeds_are_the_seeds_alone(flfast_run):
    words = (*SMALL, "logger=csv", "model=lightning", "model._target_=lightning_modules.Dropped")
    sweep = flfast_run("-m", "hydra/launcher=packed", "seed=0,1", *words, run_dir="sweep")
    for seed in (0, 1):
        alone = flfast_run(f"seed={seed}", *words, run_dir=f"alone-{seed}")
        packed, one = (torch.load(f / "model.pt") for f in (sweep / str(seed), alone))
        assert all(torch.equal(value, packed[name]) for name, value in one.items())


HOOKS = [
    f"on_{stage}_{when}"
    for stage in ("validation", "test")
    for when in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
]


def test_hooks_of_evaluation_get_the_arguments_that_lightning_passes(run, monkeypatch, tmp_path):
    calls = set()
    for name in HOOKS:
        monkeypatch.setattr(
            modules.Measured, name, lambda _, *args, name=name: calls.add((name, len(args)))
        )
    run(modules.Measured, "rounds=1")
    found, loader = set(calls), DataLoader(TensorDataset(torch.randn(4, 8), torch.arange(4) % 3))
    calls.clear()
    trainer = L.Trainer(default_root_dir=tmp_path, logger=False, accelerator="cpu", devices=1)
    for evaluate in (trainer.validate, trainer.test):
        evaluate(modules.Measured(), loader, verbose=False)
    assert found == calls and len(calls) == len(HOOKS)
