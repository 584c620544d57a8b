"""Messages that name a line of Python, or settings, which then work."""

import re

import lightning as L
import numpy as np
import pytest
import torch
from pages import PAGES
from sampling import others_slow
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flfast
from flfast.config.composition import compose
from flfast.datamodules.sources.npz import read_arrays

PARTS = [TensorDataset(torch.randn(20, 5), torch.arange(20) % 3) for _ in range(3)]
QUICK = ("rounds=1", "local_epochs=1", "batch_size=100", "trainer.devices=1", "callbacks=none")


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def refused(*words, **objects):
    with pytest.raises(flfast.ConfigError) as found:
        flfast.run(*QUICK, *words, **objects)
    return str(found.value)


def test_a_checkpoint_of_lightning_names_the_line_that_takes_its_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lit, data = Lit(), DataLoader(TensorDataset(torch.randn(4, 1, 8, 8)), num_workers=0)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(max_steps=1, accelerator="cpu", enable_model_summary=False, **options)
    trainer.fit(lit, data)
    trainer.save_checkpoint("lit.ckpt")
    said = refused("init_from=lit.ckpt", model=lit.net)
    assert "init_from=lit.ckpt is a checkpoint; allowed: its weights alone" in said
    exec(said.partition("in Python: ")[2], {"torch": torch})
    weights = torch.load("weights.pt")
    assert all(torch.equal(weights[name], w) for name, w in lit.net.state_dict().items())
    flfast.run(*QUICK, "init_from=weights.pt", model=lit.net)


@pytest.mark.parametrize("parts", [PARTS, PARTS[:2], tuple(PARTS)], ids=len)
def test_a_list_of_datasets_names_what_each_may_mean(tmp_path, monkeypatch, caplog, parts):
    """Two or three may also be those of random_split."""
    monkeypatch.chdir(tmp_path)
    run = flfast.run(*QUICK, data=parts, model=nn.Linear(5, 3))
    assert f"{len(parts)} clients" in (run.folder / "train.log").read_text()
    assert f"data=: each of {len(parts)} Datasets is that of a client" in caplog.text
    assert "torch.utils.data.ConcatDataset(PARTS)" in caplog.text


@pytest.mark.parametrize(
    ("start", "said"),
    [(b"\x89HDF\r\n\x1a\n", "HDF5; of an h5py.File"), (b"PAR1", "data=table"), (b"no", "zip")],
)
def test_files_of_other_formats_are_named(tmp_path, start, said):
    (tmp_path / "file").write_bytes(start + b"0" * 64)
    with pytest.raises(ValueError, match=said):
        read_arrays(tmp_path / "file", {"inputs": "inputs"})


@pytest.mark.parametrize(
    ("task", "kind", "allowed"),
    [
        ("regression", "float32", "[9, C]"),
        ("multilabel", "float32", "[9, C]"),
        ("survival", "float32", "[9, 2]"),
        ("language", "int64", "[9, T]"),
        ("classification", "int64", "[9]"),
    ],
)
def test_targets_of_another_shape_name_the_axes(tmp_path, task, kind, allowed):
    targets = np.zeros((9, 3, 5), kind)
    np.savez(tmp_path / "a.npz", inputs=np.zeros((9, 4), "float32"), targets=targets)
    said = refused("data=npz", f"data.root={tmp_path}/a.npz", f"task={task}", "partition=iid")
    assert f"allowed: {allowed}, as task={task} reads them" in said


@pytest.mark.parametrize("algorithm", others_slow(["fml", "fedkd", "fedmrl"], ["fedmrl"]))
def test_an_algorithm_that_needs_a_common_model_names_it(algorithm):
    said = refused(f"algorithm={algorithm}", "model=family")
    assert f"model.common=null with algorithm={algorithm}" in said
    assert said.endswith("model.common=mlp")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fml", "fedkd", "fedmrl"])
def test_the_common_model_that_is_named_works(tmp_path, monkeypatch, algorithm):
    monkeypatch.chdir(tmp_path)
    words = (f"algorithm={algorithm}", "model=family", "model.common=mlp", "engine=eager")
    flfast.run(*QUICK, *words)


CELLS = [
    (path.stem, option, setting)
    for path in PAGES
    for option, setting in re.findall(
        r"^\| `(\w+) ([a-z_.]+=\w+)` \|", path.read_text(encoding="utf-8"), re.M
    )
    if path.stem in {"data", "compression"}
]


@pytest.mark.parametrize(("group", "option", "setting"), CELLS)
def test_options_with_a_setting_can_be_typed_as_the_pages_have_them(group, option, setting):
    compose([f"{group}={option}", setting])


def test_there_are_such_cells():
    assert len(CELLS) >= 4
