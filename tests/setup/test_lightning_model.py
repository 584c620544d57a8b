"""A LightningModule as a run's model: what of it acts, and what is refused or named."""

import logging

import lightning as L
import pytest
import torch
from composing import FILES
from torch import nn

import flfast
from flfast.setup.lightning_model import check_hooks, overridden_hooks

CALLED_BY_USERS = {
    *("all_gather", "clip_gradients", "freeze", "load_from_checkpoint", "log", "log_dict"),
    *("lr_schedulers", "manual_backward", "optimizers", "print", "remove_ignored_hparams"),
    *("save_hyperparameters", "to_onnx", "to_tensorrt", "to_torchscript", "toggle_optimizer"),
    *("toggled_optimizer", "unfreeze", "untoggle_optimizer"),
}
"""Methods of a LightningModule that its author calls, and the Trainer does not."""

HOOKS = [
    name
    for name in dir(L.LightningModule)
    if name[0] != "_"
    and callable(getattr(L.LightningModule, name))
    and not hasattr(nn.Module, name)
    and name not in CALLED_BY_USERS
]


class Net(L.LightningModule):
    """A forward alone."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, inputs):
        return self.net(inputs)


def with_hooks(*names):
    return type("Lit", (Net,), {name: lambda self, *_: None for name in names})()


@pytest.fixture
def quick(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("rounds=1", "local_epochs=1", "batch_size=100", "trainer.devices=1", "callbacks=none")
    return lambda *more, **objects: flfast.run(*words, *more, **objects)


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_of_lightning_is_refused_or_named(caplog, name):
    model = with_hooks(name)
    assert overridden_hooks(model) == [name]
    if name in {"training_step", "configure_optimizers"}:
        with pytest.raises(flfast.ConfigError, match=rf"^model=x: .*its {name},.*MODULE\.net;"):
            check_hooks("model=x", model)
    else:
        check_hooks("model=x", model)
        assert f"its forward alone, and not its {name}" in caplog.text


def test_a_module_without_hooks_is_the_network_in_it(quick, caplog):
    lit = Net()
    found = quick("engine=fused", *FILES, folder="lit", model=lit)
    with caplog.at_level(logging.WARNING):
        inner = quick("engine=fused", *FILES, folder="net", model=lit.net)
    weights = [torch.load(run.folder / "model.pt") for run in (found, inner)]
    assert all(torch.equal(*pair) for pair in zip(*(w.values() for w in weights), strict=True))
    assert "forward alone" not in caplog.text


def test_what_the_refusal_names_works(quick):
    lit = with_hooks("training_step", "configure_optimizers", "on_train_epoch_end")
    with pytest.raises(flfast.ConfigError) as refused:
        quick(folder="lit", model=lit)
    said = str(refused.value)
    assert len(said.splitlines()) == 1
    assert "its configure_optimizers, on_train_epoch_end, training_step" in said
    assert "MODULE.net; with optimizer=NAME" in said
    quick("optimizer=adam", folder="net", model=lit.net)


def test_a_target_of_the_command_line_is_refused(flfast_run, monkeypatch, tmp_path, capsys):
    (tmp_path / "lit_nets.py").write_text(
        "import lightning as L\nfrom torch import nn\n\n\n"
        "class Lit(L.LightningModule):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.encoder, self.head = nn.Flatten(), nn.Linear(64, 10)\n\n"
        "    def forward(self, inputs):\n"
        "        return self.head(self.encoder(inputs))\n\n"
        "    def training_step(self, batch, batch_idx):\n"
        "        return self(batch[0]).square().mean()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as stop:
        flfast_run("model=custom", "model._target_=lit_nets.Lit", "callbacks=none")
    assert stop.value.code == 2
    assert "would not call its training_step" in capsys.readouterr().err
