"""What a run leaves of a LightningModule: a checkpoint that Lightning opens, and exports."""

import shutil
from functools import partial

import lightning as L
import pytest
import torch
from lightning_modules import Plain
from torch import nn

import flfast

WORDS = (
    *(
        "data=synthetic",
        "data.num_examples=72",
        "data.num_test=24",
        "data.shape=[8]",
        "data.num_clients=3",
    ),
    *(
        "data.num_classes=3",
        "partition.min_samples=2",
        "partition=iid",
        "partition.num_clients=3",
        "batch_size=5",
    ),
    *("rounds=1", "trainer.devices=1"),
    *(f"callbacks.{name}=null" for name in ("curves", "partition_report", "monitor")),
)


LATE = partial(nn.Linear, bias=False)


class Saving(Plain):
    """Has layers that are made late, hyperparameters of any kind, and adds to its checkpoints."""

    def __init__(self, width=5, activation=nn.Tanh, late=LATE):
        super().__init__()
        self.save_hyperparameters()
        self.head = self.seen = None

    def configure_model(self):
        if self.head is None:
            self.head = self.hparams.late(3, 3)

    def forward(self, x):
        return self.head(self.hparams.activation()(self.net(x)))

    def on_save_checkpoint(self, checkpoint):
        checkpoint["seen"] = self.hparams.width

    def on_load_checkpoint(self, checkpoint):
        self.seen = checkpoint["seen"]


class Twice(Plain):
    """A layer in two places."""

    def __init__(self):
        super().__init__()
        self.first = self.net[0]


class Multimodal(Plain):
    """A forward of two inputs and two outputs."""

    def forward(self, left, right):
        return {"sum": self.net(left + right), "left": left}

    def loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0], 2 * batch[0])["sum"], batch[1])


class Siamese(Plain):
    """Calls forward twice in a step."""

    def loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0]) + self(-batch[0]), batch[1])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of each kind of module."""
    runs = {}

    def run(kind):
        if kind not in runs:
            folder = tmp_path_factory.mktemp(kind.__name__) / "run"
            runs[kind] = flfast.run(*WORDS, model=kind(), folder=folder)
        return runs[kind]

    return run


def same(module, other):
    found, expected = module.state_dict(), other.state_dict()
    assert found.keys() == expected.keys()
    return all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("kind", [Saving, Twice, Multimodal])
def test_lightning_opens_the_checkpoint(finished, kind):
    run = finished(kind)
    opened = kind.load_from_checkpoint(run.folder / "model.ckpt", weights_only=False)
    assert type(run.model) is type(opened) is kind
    assert same(opened, run.model)


def test_it_holds_hyperparameters_and_what_the_module_adds(finished):
    path = finished(Saving).folder / "model.ckpt"
    opened = Saving.load_from_checkpoint(path, weights_only=False)
    assert opened.seen == opened.hparams.width == 5
    assert opened.hparams.activation is nn.Tanh


def test_it_needs_no_flfast(finished):
    path = finished(Saving).folder / "model.ckpt"
    needed = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    assert "torch.nn.modules.activation.Tanh" in needed
    assert not [name for name in needed if name.startswith("flfast")]


@pytest.mark.parametrize("kind", [Saving, Twice])
def test_init_from_takes_it(finished, tmp_path, kind):
    path = finished(kind).folder / "model.ckpt"
    words = (*WORDS, f"init_from={path}", "rounds=1", "optimizer.lr=1e-30")
    again = flfast.run(*words, model=kind(), folder=tmp_path / "again")
    for name, value in finished(kind).model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], value)


def test_init_from_runs_no_code_of_a_checkpoint(finished, tmp_path):
    class Evil:
        def __reduce__(self):
            return shutil.copyfile, (__file__, tmp_path / "copied")

    content = torch.load(finished(Twice).folder / "model.ckpt", weights_only=False)
    torch.save({**content, "hyper_parameters": Evil()}, tmp_path / "evil.ckpt")
    words = (*WORDS, f"init_from={tmp_path / 'evil.ckpt'}")
    flfast.run(*words, model=Twice(), folder=tmp_path / "run")
    assert not (tmp_path / "copied").exists()


def test_init_from_of_other_weights_says_how_to_take_them(finished, tmp_path):
    words = (*WORDS, f"init_from={finished(Twice).folder / 'model.ckpt'}")
    with pytest.raises(flfast.ConfigError, match="is a checkpoint; allowed: its weights alone"):
        flfast.run(*words, model=Plain().net, folder=tmp_path / "run")


def test_what_cannot_be_saved_does_not_end_the_run(tmp_path, caplog):
    class Broken(Plain):
        def on_save_checkpoint(self, checkpoint):
            raise RuntimeError("no space")

    run = flfast.run(*WORDS, model=Broken(), folder=tmp_path / "run")
    assert "no model.ckpt: RuntimeError: no space" in caplog.text
    assert isinstance(run.model, L.LightningModule)


@pytest.mark.parametrize("words", [["format=torch"], ["format=onnx"]])
def test_the_export_is_the_forward_of_the_module(finished, words):
    if "onnx" in words[0]:
        pytest.importorskip("onnxruntime")
    run = finished(Plain)
    path = run.export(*words)
    if path.suffix == ".pt2":
        inputs = torch.randn(7, 8)
        torch.testing.assert_close(torch.export.load(path).module()(inputs), run.model(inputs))


def test_an_export_has_all_inputs_and_outputs(finished):
    run = finished(Multimodal)
    path, inputs = run.export("format=torch"), (torch.randn(7, 8), torch.randn(7, 8))
    torch.testing.assert_close(torch.export.load(path).module()(*inputs), run.model(*inputs))


def test_an_export_that_does_not_know_the_inputs_says_what_to_add(finished):
    run = finished(Siamese)
    with pytest.raises(
        flfast.ConfigError, match=r"call forward 2 times; allowed: .*example_input"
    ):
        run.export("format=torch")
    module = Siamese()
    module.example_input_array = torch.zeros(1, 8)
    path = flfast.Run(run.folder, model=module).export("format=torch")
    assert torch.export.load(path).module()(torch.randn(4, 8)).shape == (4, 3)
