"""Tables of a run whose metrics are those of a user's LightningModule."""

import lightning as L
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flfast
from flfast.output.results.columns import is_metric
from flfast.output.results.table import read_clients, read_history
from flfast.state.randomness import seed_torch

WORDS = ("data=synthetic", "data.num_examples=72", "data.num_test=24", "data.shape=[8]")
WORDS = (*WORDS, "data.num_clients=3", "data.num_classes=3", "partition=iid", "engine=eager")
WORDS = (
    *WORDS,
    "partition.num_clients=3",
    "partition.min_samples=2",
    "batch_size=8",
    "split.val=0.3",
)
WORDS = (*WORDS, "local_epochs=1", "trainer.devices=1", "callbacks=files", "~callbacks.curves")
WORDS = (*WORDS, "checkpoint.every=1", "stop=plateau")
OWN = ("optimized_metric=val/f 1.x/y",)
KEPT = {"train/kl", "train/loss", "train/samples_per_s"}


class Module(L.LightningModule):
    """Logs other names in each step."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 3)

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train/kl", 2 * loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val/f 1.x/y", self.net(batch[0]).mean())

    def test_step(self, batch, batch_idx):
        self.log("test/acc", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run the module for some rounds in a folder of that name, which may hold a run to resume."""
    root = tmp_path_factory.mktemp("runs")

    def run(name, *words):
        seed_torch(0, "initial weights")
        words = words if any(word.startswith("optimized") for word in words) else (*OWN, *words)
        return flfast.run(*WORDS, *words, model=Module(), folder=root / name).folder

    return run


def columns_of(table):
    return [column for column in table[0] if is_metric(column) or column.startswith("train/")]


def test_a_modules_tables_have_what_it_logs_also_when_it_goes_on(run):
    whole, parts = run("whole", "rounds=3"), run("parts", "rounds=2")
    parts = run("parts", "rounds=3", "resume=auto")
    for name in ("metrics.csv", "clients.csv"):
        lines = [(folder / name).read_text().splitlines() for folder in (whole, parts)]
        assert lines[0][0] == lines[1][0]
        assert len(lines[0]) == len(lines[1])
    history, clients = read_history(whole / "metrics.csv"), read_clients(whole / "clients.csv")
    spread = [f"{end}" for end in ("", "_std", "_worst10")]
    expected = {f"local/acc{end}" for end in spread} | {f"val/f 1.x/y{end}" for end in spread}
    assert {*columns_of(history)} == {*expected, "global/acc", *KEPT}
    assert {*columns_of(clients)} == {"train/kl", "train/loss", "local/acc", "val/f 1.x/y"}
    accuracies = [float(row["local/acc"]) for row in clients]
    assert len(accuracies) == 3
    assert float(history[-1]["local/acc_worst10"]) == pytest.approx(min(accuracies))


def test_its_report_and_evaluation_have_them(run):
    folder = run("evaluated", "rounds=1")
    page = (folder / "report.html").read_text()
    assert all(name in page for name in ("global/acc", "val/f 1.x/y", "Clients up to f 1.x/y"))
    found = flfast.Run(folder, model=Module())
    assert {*found.evaluate("split=val")} == {f"val/f 1.x/y{e}" for e in ("", "_std", "_worst10")}
    row = read_history(folder / "metrics.csv")[-1]
    for column, value in found.evaluate().items():
        assert value == pytest.approx(float(row[column]), abs=1e-6)


def test_a_name_of_two_lines_is_refused(run, monkeypatch):
    def log_two_lines(self, _):
        self.log("test/a\nb", 1.0)

    monkeypatch.setattr(Module, "test_step", log_two_lines)
    with pytest.raises(flfast.ConfigError, match=r"logs 'a\\nb'; allowed: names on one line"):
        run("refused")


def test_validation_within_local_training_is_not_its_loss(run, monkeypatch):
    def log_constants(self, _):
        self.log("val/loss", 77.0)
        self.log("val/acc", 77.0, on_step=True, on_epoch=True)

    def watch_validation(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        rates = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": rates, "monitor": "val/loss"},
        }

    monkeypatch.setattr(Module, "validation_step", log_constants)
    monkeypatch.setattr(Module, "configure_optimizers", watch_validation)
    row = read_history(run("watched", "optimized_metric=val/acc") / "metrics.csv")[-1]
    assert float(row["val/loss"]) == float(row["val/acc"]) == 77.0
    assert "train/acc" not in row
    assert 0 < float(row["train/loss"]) < 10
    with pytest.raises(flfast.ConfigError, match="train/acc: task=module measures loss, kl"):
        run("other", "optimized_metric=train/acc")
