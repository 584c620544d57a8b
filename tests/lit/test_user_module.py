"""What a run adds to a user's module: metric objects, and what a scheduler and Ditto share."""

import lightning_modules as modules
import pytest
import torch
import torchmetrics
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel, DemoModel
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, default_collate

import flfast
from flfast.lit.user_module import forgotten

WORDS = ("rounds=1", "partition.num_clients=2", "partition.min_samples=2", "local_epochs=1")
WORDS = (*WORDS, "trainer.devices=1", "logger=csv", "callbacks=none", "batch_size=4")
DATA = TensorDataset(torch.linspace(-1, 1, 24 * 8).reshape(24, 8), torch.arange(24) % 3)


class MetricLoss(modules.Plain):
    """A metric object is the loss, as in chemprop and pytorch-forecasting."""

    def __init__(self):
        super().__init__()
        self.error = torchmetrics.MeanSquaredError()
        self.seen = torchmetrics.MetricCollection(
            {name: torchmetrics.Accuracy("multiclass", num_classes=3) for name in ("a", "b")}
        )

    def loss(self, batch):
        x, y = batch
        self.seen(self(x), y)
        self.log("train/seen", self.seen["a"], on_step=False, on_epoch=True)
        return self.error(self(x)[:, 0], y.float())

    def validation_step(self, batch, batch_idx):
        self.log(
            "val/acc",
            torchmetrics.functional.accuracy(
                self(batch[0]), batch[1], task="multiclass", num_classes=3
            ),
        )


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(model, *words, **objects):
        return flfast.run(*WORDS, *words, model=model, **objects)

    return run


def log_of(run):
    return (run.folder / "train.log").read_text()


def test_metric_objects_forget_what_does_not_count():
    module = MetricLoss()
    batch = DATA[:4]
    module.seen.update(module(batch[0]), batch[1])
    before = {name: float(value) for name, value in module.seen.compute().items()}
    with forgotten(module):
        module.seen.update(module(batch[0]), 2 - batch[1])
        module.error(batch[1].float(), batch[1])
        assert module.seen["a"].update_count == 2
    assert {name: float(value) for name, value in module.seen.compute().items()} == before
    assert (module.seen["a"].update_count, module.error.update_count) == (1, 0)
    module.seen.update(module(batch[0]), batch[1])
    assert {name: float(value) for name, value in module.seen.compute().items()} == before


class FunctionLoss(MetricLoss):
    """The same without the metric object."""

    def loss(self, batch):
        return torch.nn.functional.mse_loss(self(batch[0])[:, 0], batch[1].float())


@pytest.mark.parametrize("algorithm", ["ditto", "fedprox", "mime", "q_fedavg", "per_fedavg"])
def test_a_metric_object_may_be_the_loss(run, algorithm):
    """Also where an algorithm measures examples, or calls the task again."""
    words = (f"algorithm={algorithm}", "rounds=2", "optimizer=sgd", "optimizer.lr=0.1")
    module = MetricLoss()
    found = run(module, *words, data=DATA)
    assert "the loss is NaN without metric objects" in log_of(found)
    function = FunctionLoss()
    function.load_state_dict(module.state_dict())
    expected = run(function, *words, "engine=eager", data=DATA, folder="function")
    losses = [one.history["train/loss"].iloc[-1] for one in (found, expected)]
    assert losses[0] == pytest.approx(losses[1], 1e-5)


@pytest.mark.parametrize("kind", [modules.ByStep, modules.ByEpoch])
def test_leaves_beside_the_model_have_the_schedulers_rates(run, kind):
    class Lambda(kind):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [
                torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (k + 1))
            ]

    found = run(Lambda(), "algorithm=ditto", data=DATA)
    assert found.history["train/loss"].notna().iloc[-1]


def test_scaffold_corrects_a_modules_own_sgd(run):
    words = ("algorithm=scaffold", "rounds=2", "engine=eager")
    module = modules.Plain()
    own, given = (
        run(module, *words, *more, data=DATA, folder=name)
        for name, more in {"own": (), "given": ("optimizer=sgd", "optimizer.lr=0.1")}.items()
    )
    losses = [found.history["train/loss"].iloc[-1] for found in (own, given)]
    assert losses[0] == pytest.approx(losses[1], 1e-6)
    for kind in (modules.Dropped, modules.ByEpoch):  # Adam, and rates that change
        with pytest.raises(flfast.ConfigError, match="needs local steps of SGD"):
            run(kind(), *words, data=DATA, folder="refused")


def test_lightnings_demos(run):
    found = run(DemoModel(), "algorithm=ditto", data=BoringDataModule())
    assert found.history["val/loss"].notna().all()  # whose validation is not the clients'
    silent = run(BoringModel(), data=BoringModel(), folder="silent")
    assert "its test_step logs nothing, so nothing is measured" in log_of(silent)


def test_loaders_are_data_as_trainers_have_them(run):
    def collate(samples):
        return {"x": default_collate(samples)}

    class Dicts(modules.Plain):
        def loss(self, batch):
            return super().loss(batch["x"])

    loaders = [DataLoader(DATA, 6, collate_fn=collate) for _ in range(2)]
    found = run(Dicts(), data=loaders[0], test_data=loaders[1])
    assert found.history["global/loss"].notna().all()
    assert "engine fused" in log_of(found)
    drawn = DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True))
    with pytest.raises(flfast.ConfigError, match="data=: train_dataloader draws by RandomSampler"):
        run(Dicts(), data=drawn, folder="refused")
