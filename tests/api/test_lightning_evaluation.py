"""Evaluation of LightningModules: it leaves nothing behind, and measures what is logged alone."""

from dataclasses import replace
from types import SimpleNamespace

import lightning as L
import lightning_modules as modules
import lightning_zoo as zoo
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning_fits import QUIET, SMALL, weights
from sampling import others_slow
from torch.utils.data import DataLoader, TensorDataset

import flfast
from flfast.channel.wire import pack, unpack
from flfast.datamodules.evaluation_sets import EvaluationSet
from flfast.engines.evaluation.metrics import part_of_groups, summary
from flfast.engines.evaluation.module_evaluation import _as_metrics
from flfast.engines.evaluation.remote_metrics import (
    joined_metrics,
    message_of_metrics,
    metrics_of,
)
from flfast.tasks.module import MODULE


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a new module; with data of its own, three clients have them."""
    monkeypatch.chdir(tmp_path)

    def run(kind, *words, **objects):
        data = ("partition=iid", "partition.num_clients=3", "local_epochs=1")
        small = data if objects else SMALL
        return flfast.run(*small, *QUIET, *words, model=zoo.fresh(kind), **objects)

    return run


class Carries(modules.Plain):
    """Goes on from its own last output, which has a gradient, as Lightning's LSTM demo does."""

    last = None

    def training_step(self, batch, batch_idx):
        carried = 0.0 if self.last is None else self.last.detach().mean()
        self.last = self(batch[0])
        return self.loss(batch) * (1 + 0.5 * carried)

    def predict_step(self, batch, batch_idx):
        self.last = self(batch[0])
        return self.last


STATES = ["Counter", "AnnealedWeight", "KeepsOutputs", "PythonRandom", "NumpyRandom"]
STATES = [*STATES, "OwnGenerator", "TorchRandom", "Carries"]
PATHS = {
    "server": (),
    "personal": ("algorithm=ditto",),
    "fine-tuned": ("finetune_epochs=1", "local_epochs=1"),
}


@pytest.mark.parametrize(
    ("name", "path"),
    others_slow(
        [(name, path) for name in STATES for path in PATHS],
        [("Carries", "personal"), ("Counter", "fine-tuned")],
    ),
)
def test_evaluation_changes_nothing_of_training(run, name, path):
    """A module that evaluates by its training step keeps or draws something in Python."""
    kind = zoo.ZOO.get(name, Carries)
    words = ("engine=eager", "rounds=3", *PATHS[path])
    seldom, often = run(kind, *words, "eval_every=3"), run(kind, *words, "eval_every=1")
    for key, value in weights(seldom).items():
        assert torch.equal(value, weights(often)[key]), key


@pytest.mark.parametrize("name", ["Counter", "Carries"])
def test_clients_are_evaluated_as_if_alone(run, name):
    """What one leaves in the module does not reach the next, nor a later evaluation."""
    kind = zoo.ZOO.get(name, Carries)
    words = ("engine=eager", "rounds=1", "split.test=0.3", "loader.eval_batch_size=2")
    first = run(kind, *words, "algorithm=fedavg")
    again = [first.evaluate("split=test") for _ in range(2)]
    assert again[0] == again[1]
    found = first.clients["local/loss"].tolist()
    kept = type("Last", (kind,), {"evaluated": 2})
    assert found == run(kept, *words).clients["local/loss"].tolist()


def columns(run):
    """Columns of metrics that a run has, in any file."""
    found = {*run.history.columns[run.history.notna().any()], *run.clients.columns}
    return {
        c for c in found | {*run.evaluate()} if c.partition("/")[0] in {"global", "local", "val"}
    }


class OnlyValidates(modules.Plain):
    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.loss(batch))

    def test_step(self, batch, batch_idx):
        pass


class OnlyTests(modules.Plain):
    def validation_step(self, batch, batch_idx):
        pass

    def test_step(self, batch, batch_idx):
        self.log("test/f2", self.loss(batch))


TEST = {f"local/f2{end}" for end in ("", "_std", "_worst10")} | {"global/f2"}
VAL = {f"val/loss{end}" for end in ("", "_std", "_worst10")}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(modules.ByHand, set()), (OnlyValidates, VAL), (OnlyTests, TEST)],
)
def test_there_is_no_column_of_what_is_not_logged(run, kind, expected):
    assert columns(run(kind, "rounds=1")) == expected


class Halves(L.LightningDataModule):
    """Training and validation examples, and perhaps test examples."""

    def train_dataloader(self):
        return self.loader(slice(0, 40))

    def val_dataloader(self):
        return self.loader(slice(40, 60))

    def loader(self, part):
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(60, 8, generator=generator)
        return DataLoader(TensorDataset(inputs[part], inputs[part].argmax(1) % 3), batch_size=5)


@pytest.mark.parametrize("kind", [modules.Measured, modules.Plain])
@pytest.mark.parametrize(
    ("words", "column"),
    [
        ((), "val/loss"),
        (("algorithm=ditto",), "val/loss"),
        (("mode=local_only",), "train/loss"),
        (("mode=local_only", "stop=plateau"), "train/loss"),
    ],
)
def test_a_central_validation_set_is_compared_by_if_a_model_of_the_server_is_there(
    run, words, column, kind
):
    found = run(kind, "rounds=2", *words, data=Halves())
    row = found.history.iloc[-1]
    assert f"{row[column]}" in (found.folder / "result.json").read_text()
    central = [c for c in found.history.columns if c.startswith("val/")]
    assert not any("_std" in c or "_worst10" in c for c in central), "it is nobody's"
    assert not any(c.startswith("val/") for c in found.clients.columns)


VALUES = st.floats(-1e30, 1e30) | st.sampled_from([np.nan, np.inf])
TOLD = st.dictionaries(st.text(min_size=1, max_size=20), VALUES, max_size=4)


@given(st.lists(TOLD, min_size=1, max_size=4))
def test_what_real_clients_measure_is_what_a_simulation_would(told):
    """Whatever names they log, and whatever values: also percentages."""
    num = len(told)
    examples = SimpleNamespace(task_type=MODULE, targets=torch.zeros(2 * num, dtype=torch.int64))
    own = [SimpleNamespace(indices_of=lambda _: range(2))] * 2
    data = SimpleNamespace(examples=examples, splits=dict(zip(("val", "test"), own, strict=True)))
    clients = np.repeat(np.arange(num), 2)
    part = EvaluationSet(np.arange(2 * num), clients, np.arange(num), clients)
    expected = _as_metrics(part, dict(enumerate(told)))
    answers = [
        message_of_metrics({"local": part_of_groups(expected, torch.tensor([k]))})
        for k in range(num)
    ]
    names = tuple({name for values in told for name in values})
    task = replace(MODULE, logged=((), (), names))
    sent = [metrics_of(data, task, k, unpack(pack(message))) for k, message in enumerate(answers)]
    found = joined_metrics([answer["local"] for answer in sent])
    assert summary(found) == pytest.approx(summary(expected), nan_ok=True)
    assert (found.headline, found.spread) == (expected.headline, expected.spread)
