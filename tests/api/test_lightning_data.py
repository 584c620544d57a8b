"""A LightningModule's own data in a run: each way of giving the same samples is the same run."""

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from own_reading import read_data
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, StackDataset, Subset, TensorDataset

import flfast
from flfast.algorithms.contract.algorithm import Algorithm
from flfast.api.arguments import Arguments
from flfast.api.own_objects import fingerprint, own_objects
from flfast.datamodules.samples import CollatedSamples, StackedSamples

X, Y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
WHO = [f"site {k % 4}" for k in range(60)]
DATA = TensorDataset(X, Y)


class Net(L.LightningModule):
    """Reads pairs."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        nn.init.constant_(self.layer.weight, 0.1)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val/acc", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(L.LightningDataModule):
    """Three parts of the samples."""

    def __init__(self, batch_size=6, size=40):
        super().__init__()
        self.batch_size, self.size = batch_size, size

    def setup(self, stage):
        self.train = Subset(DATA, range(self.size))
        self.val, self.test = Subset(DATA, range(40, 50)), Subset(DATA, range(50, 60))

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, 4)

    def test_dataloader(self):
        return DataLoader(self.test, 4)


class Named(StackDataset):
    """Samples, and the names of their clients."""

    def __init__(self, data):
        super().__init__(*data.tensors)
        self.who = WHO


def read(data, test_data=None, **options):
    given = {"target": None, "client": None, "task": "module", **options}
    return read_data(data, test_data, **given)


def trained(tmp_path, name, *words, **options):
    words = (
        "rounds=1",
        "local_epochs=1",
        "logger=csv",
        "trainer.devices=1",
        "callbacks=none",
        *words,
    )
    return flfast.run(*words, folder=tmp_path / name, **{"model": Net(), **options})


def test_the_same_samples_are_the_same_run(tmp_path):
    rows = X[:, 0].tolist()
    forms = {
        "array": {"data": (X, Y), "client": WHO},
        "function": {"data": [*DATA], "client": lambda sample: WHO[rows.index(sample[0][0])]},
        "column": {"data": Named(DATA), "client": "who"},
    }
    runs = [trained(tmp_path, name, **form) for name, form in forms.items()]
    assert len({run.history["train/loss"].iloc[-1] for run in runs}) == 1
    parts = {name: Subset(DATA, range(k, 60, 4)) for k, name in enumerate(sorted(set(WHO)))}
    run = trained(tmp_path, "parts", data=parts, test_data=DATA)
    assert run.history["local/acc"].notna().all()


def test_a_data_module_in_a_run(tmp_path):
    run = trained(tmp_path, "run", "partition.num_clients=3", data=Data())
    config = (tmp_path / "run" / ".hydra" / "config.yaml").read_text()
    assert "\nbatch_size: 6\n" in config
    assert run.history["val/acc"].notna().all()


def test_the_batch_size_of_a_loader_is_a_default(tmp_path):
    trained(tmp_path, "run", "partition.num_clients=3", "batch_size=4", data=Data())
    assert "\nbatch_size: 4\n" in (tmp_path / "run" / ".hydra" / "config.yaml").read_text()


def test_a_network_without_steps_reads_pairs_of_a_data_module(caplog):
    found = read(Data(), task="classification")
    assert found.task == "classification"
    assert (len(found.targets), int(found.is_test.sum()), found.batch_size) == (50, 10, 6)
    assert "only a LightningModule uses val_dataloader" in caplog.text


def test_a_data_frame_has_its_own_task():
    frame = pd.DataFrame(X.numpy(), columns=[*"abcd"])
    assert read(frame.assign(y=Y.numpy()), target="y").task == "classification"
    assert read(frame.assign(y=X[:, 0].numpy()), target="y").task == "regression"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"data": Data(), "test_data": (X, Y)},
            "test_data= with data= of type Data; allowed: client=, labels=",
        ),
        (
            {"data": (X, Y), "target": "y"},
            "target= with data= of type tuple; allowed: test_data=, client=",
        ),
        (
            {"data": (X, Y), "client": "where"},
            "client=where: allowed: an attribute of the Dataset",
        ),
        (
            {"data": (X, Y), "client": 2},
            "client=2: .*key or index of a sample, which has 2",
        ),
        ({"data": (X, Y), "labels": [0, 1]}, "labels=a list: 2 values for 60 samples"),
        ({"data": (X, Y[:3])}, "data=: Size mismatch"),
        ({"data": None, "labels": 1}, "labels= needs data="),
        ({"data": [DATA, DATA], "client": 1}, "client= with Datasets of clients"),
        ({"data": Data(size=0)}, "data=Data: .*ValueError|a Dataset has no sample"),
        ({"data": (X, Y), "client": lambda sample: 1 / 0}, "data=tuple: ZeroDivisionError"),
    ],
)
def test_what_cannot_be_read_is_one_message(options, said):
    with pytest.raises(flfast.ConfigError, match=said):
        read(**options)


@pytest.mark.parametrize(
    ("options", "warned"),
    [({}, True), ({"client": 2}, False), ({"labels": 2}, False), ({"labels": 1}, False)],
)
def test_a_third_part_is_no_client_without_a_word(options, warned, caplog):
    """Without a LightningModule, three arrays are inputs, targets and clients."""
    read(data=(X, Y, torch.arange(60) % 4), **options)
    assert ("the last one is taken for their labels; client=2" in caplog.text) == warned


def test_a_dataset_that_has_labels_beside_its_samples_takes_no_part_for_them(caplog):
    data = StackDataset(X, Y, torch.arange(60) % 4)
    data.targets = Y
    assert torch.equal(read(data).labels, Y)
    assert "taken for their labels" not in caplog.text


def test_the_content_of_samples_counts():
    same, other = read((X, Y)), read((X, Y.flip(0)))
    assert isinstance(same.inputs, StackedSamples)
    assert fingerprint(same) == fingerprint(read(DATA))
    assert fingerprint(same) != fingerprint(other)
    texts = [read({"x": X, "name": [*names]}) for names in ("a" * 60, "a" * 60, "b" * 60)]
    assert isinstance(texts[0].inputs, CollatedSamples)
    assert fingerprint(texts[0]) == fingerprint(texts[1])


def test_what_was_given_is_noted_for_the_lines_that_open_the_run():
    given = Arguments(data=(X, Y), model=Net(), client=np.array(WHO), labels=1)
    own = own_objects(given, settings=[])
    assert own.nodes["data"]["client"] == "CLIENT"
    assert own.nodes["data"]["labels"] == 1


def test_words_name_a_data_module(tmp_path):
    words = ["data=lightning", f"data._target_={__name__}.Data", "+data.batch_size=5"]
    run = trained(tmp_path, "run", *words, "data.owner=1")
    assert "\nbatch_size: 5\n" in (tmp_path / "run" / ".hydra" / "config.yaml").read_text()
    assert run.history["val/acc"].notna().all()
    with pytest.raises(flfast.ConfigError, match=r"unknown key data.batchsize=5; did you mean"):
        trained(tmp_path, "other", *words[:2], "+data.batchsize=5")
    with pytest.raises(flfast.ConfigError, match=r"data.owner=2: allowed: an attribute of the"):
        trained(tmp_path, "other", *words, "data.owner=2")


def site_of(sample):
    return f"site {int(sample[1])}"


def test_words_name_a_function_of_a_sample(tmp_path):
    words = ["data=lightning", f"data._target_={__name__}.Data", "partition=natural"]
    owner = f"data.owner={{_target_:{__name__}.site_of}}"
    run = trained(tmp_path, "run", *words, owner)
    assert set(run.history["cohort/clients"].dropna()) == {3}
    with pytest.raises(flfast.ConfigError, match=r"data\.owner=.*Error loading"):
        trained(tmp_path, "other", *words, owner.replace("site_of", "site"))


class Counting(Data):
    """Notes which hooks are called."""

    def __init__(self):
        super().__init__()
        self.called = []

    def prepare_data(self):
        self.called.append("prepare_data")

    def setup(self, stage):
        self.called.append(stage)
        super().setup(stage)

    def teardown(self, stage):
        self.called.append("teardown")

    def on_exception(self, exception):
        self.called.append("on_exception")

    def state_dict(self):
        self.called.append("state_dict")
        return {"seen": 1}


class Failing(Net):
    """Fails where its second client trains."""

    steps = 0

    def training_step(self, batch, batch_idx):
        Failing.steps += 1
        if Failing.steps > 6:
            raise ArithmeticError("too many steps")
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("engine", ["eager", "fused"])
def test_hooks_of_a_data_module_are_called_as_the_table_says(tmp_path, engine):
    data = Counting()
    words = ("partition.num_clients=3", f"engine={engine}")
    trained(tmp_path, "run", *words, data=data)
    assert data.called == ["prepare_data", "fit", "test"]
    if engine == "eager":
        failing = Counting()
        with pytest.raises(flfast.ConfigError, match="too many steps"):
            trained(tmp_path, "other", *words, data=failing, model=Failing())
        assert failing.called == data.called


def test_algorithms_that_read_public_examples_are_refused(tmp_path):
    algorithm = Algorithm("mine", facts=("public",))
    words = ("partition.num_clients=3", "split.server_examples=4")
    with pytest.raises(flfast.ConfigError, match="with task=module: it is for classif"):
        trained(tmp_path, "run", *words, data=Data(), algorithm=algorithm)
