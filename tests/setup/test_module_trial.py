"""A LightningModule on trial: what a run says of it before training."""

import lightning_modules as modules
import lightning_zoo as zoo
import pytest
import torch
from lightning_fits import QUIET, SMALL, engine_of

import flfast


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (*SMALL, *QUIET, "rounds=1", "local_epochs=1")
    return lambda kind, *more: flfast.run(*words, *more, model=zoo.fresh(kind))


def log_of(run):
    return (run.folder / "train.log").read_text()


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("Counter", "calls"),
        ("AnnealedWeight", "beta"),
        ("OwnGenerator", "generator"),
        ("ChangedLocalBuffer", "scale"),
        *((name, None) for name in ("Plain", "IntBuffer", "AveragedCopy", "ListOfOutputs")),
        *((name, None) for name in ("TemplateMetrics", "LogsDictOfMetrics", "WrappedMetric")),
        *((name, None) for name in ("MetricInLoss", "BatchNorm", "Adversarial", "SavesMore")),
    ],
)
def test_what_no_checkpoint_has_is_named(run, name, kept):
    """Weights and buffers are in checkpoints, and metric objects begin anew."""
    kind = zoo.ZOO.get(name, modules.Plain)
    text = f"local training changes {kept}, which no checkpoint of the run has"
    assert (
        (text in log_of(run(kind))) if kept else "local training changes" not in log_of(run(kind))
    )


class Warm(modules.Plain):
    """Warm-up as Lightning's documentation shows it."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        for group in optimizer.param_groups:
            group["lr"] = self.hparams.lr * min(1.0, (self.global_step + 1) / 5)
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)


class Lambda(modules.Plain):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 5))
        return [optimizer], [{"scheduler": rates, "interval": "step"}]


@pytest.mark.parametrize("kind", [Warm, Lambda])
def test_the_rate_is_that_before_warm_up(run, kind):
    assert run(kind).history["plan/lr"].iloc[-1] == pytest.approx(0.1)


class LogsReduced(modules.Plain):
    """Numbers by each reduction, in each way to log them."""

    def training_step(self, batch, batch_idx):
        for reduce in ("mean", "sum", "max", "min"):
            for ways in ((True, False), (False, True), (True, True)):
                on_step, on_epoch = ways
                name = f"train/{reduce}-{on_step}-{on_epoch}"
                self.log(name, 2.0, reduce_fx=reduce, on_step=on_step, on_epoch=on_epoch)
        return self.loss(batch)


@pytest.mark.parametrize("kind", [LogsReduced, zoo.ZOO["ComputedAtTheEnd"]])
def test_columns_of_the_eager_engine_alone_are_named(run, kind):
    fused, eager = run(kind), run(kind, "engine=eager")
    assert engine_of(fused).startswith("fused")
    missing = {*eager.history.columns} - {*fused.history.columns}
    assert missing and all(column in log_of(fused) for column in missing)
    for column in {*eager.history.columns} - missing - {*eager.history.filter(like="/s").columns}:
        if column.startswith("train/"):
            found = fused.history[column].iloc[-1]
            assert found == pytest.approx(eager.history[column].iloc[-1], rel=1e-4), column
