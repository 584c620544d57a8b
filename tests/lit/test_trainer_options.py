"""Options of the Trainer apply to local training."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping
from torch import nn

from flfast.distributed.devices import choose_devices, single_device
from flfast.state.machine import num_cores
from flfast.state.plan import Batching
from flfast.state.tree import squared_norm, sub


class RecordDtype(Callback):
    """Records the dtype of the logits."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        with trainer.precision_plugin.forward_context():
            self.dtype = pl_module.model(batch.inputs).dtype


def steps(federation):
    reports = []
    federation.engine.train(
        federation.initial, [0], federation.plans(1, []), on_client=reports.append
    )
    return reports[0].num_steps


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("32-true", torch.float32),
        ("bf16-mixed", torch.bfloat16),
        ("bf16-true", torch.bfloat16),
        ("64-true", torch.float64),
    ],
)
def test_precision(make_data, make_federation, precision, dtype):
    watch = RecordDtype()
    options = {"precision": precision, "callbacks": [watch]}
    federation = make_federation(make_data([6], split=(0.2, 0.2)), trainer=options, rounds=2)
    federation.run()
    assert watch.dtype == dtype
    assert federation.history[-1]["global/loss"] < federation.history[0]["global/loss"]


def test_double_precision_is_more_precise(make_data, make_federation):
    def run(precision):
        data = make_data([9, 5])
        federation = make_federation(data, trainer={"precision": precision}, rounds=3)
        federation.run()
        return federation.weights()

    single, double = run("32-true"), run("64-true")
    torch.testing.assert_close(single, {n: w.float() for n, w in double.items()})
    assert any(not torch.equal(single[n].double(), w.double()) for n, w in double.items())


def test_accumulate_grad_batches(make_data, make_federation):
    batching = Batching(batch_size=2, accumulate=3)
    assert steps(make_federation(make_data([11]), batching=batching)) == 2


def test_gradient_clip_val(make_data, make_federation):
    federation = make_federation(
        make_data([4]), batching=Batching(-1), lr=1.0, trainer={"gradient_clip_val": 1e-3}
    )
    federation.run()
    moved = squared_norm(sub(federation.server["params"], federation.initial["params"])).sqrt()
    assert float(moved) == pytest.approx(1e-3, rel=1e-2)


def test_limit_train_batches(make_data, make_federation):
    assert steps(make_federation(make_data([20]), trainer={"limit_train_batches": 3})) == 3
    assert steps(make_federation(make_data([20]), trainer={"limit_train_batches": 0.5})) == 5


def test_limits_count_batches_not_micro_batches(make_data, make_federation):
    def final(**batching):
        federation = make_federation(
            make_data([20]),
            trainer={"limit_train_batches": 2},
            batching=Batching(6, **batching),
        )
        federation.run()
        return federation.weights()

    torch.testing.assert_close(final(), final(micro_batch=4))


def test_limit_test_batches(make_data, make_federation):
    federation = make_federation(make_data([20], num_test=20), trainer={"limit_test_batches": 1})
    assert (
        federation.engine.evaluate(federation.initial, federation.plans(1, []))[
            "global"
        ].num_examples
        == 7
    )


def test_fast_dev_run(make_data, make_federation):
    data = make_data([20], split=(0.2, 0.0))
    assert steps(make_federation(data, trainer={"fast_dev_run": 2}, local_epochs=5)) == 2


def test_the_profiler_reports_once_per_run(make_data, make_federation, tmp_path):
    from lightning.pytorch.profilers import SimpleProfiler

    profiler = SimpleProfiler(dirpath=tmp_path, filename="profile")
    make_federation(make_data([4, 4]), trainer={"profiler": profiler}, rounds=2).run()
    reports = "".join(path.read_text() for path in tmp_path.glob("*profile*"))
    assert reports.count("Profiler Report") == reports.count("RUN Profiler Report") == 1
    assert "LocalModule.optimizer_step" in reports


def test_detect_anomaly(make_data, make_federation):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

        def forward(self, inputs):
            return inputs[:, :3] * torch.sqrt(self.weight) * 0

    federation = make_federation(make_data([4]), Broken(), trainer={"detect_anomaly": True})
    with (
        pytest.warns(UserWarning, match="Error detected"),
        pytest.raises(RuntimeError, match="nan"),
    ):
        federation.run()


def test_callbacks_see_every_clients_local_training(make_data, make_federation):
    class Count(Callback):
        fits = epochs = 0

        def on_fit_start(self, trainer, pl_module):
            self.fits += 1
            assert trainer.current_epoch == trainer.global_step == 0

        def on_train_epoch_end(self, trainer, pl_module):
            self.epochs += 1

    count = Count()
    make_federation(
        make_data([4, 4, 4]), trainer={"callbacks": [count]}, rounds=2, local_epochs=3
    ).run()
    assert (count.fits, count.epochs) == (6, 18)


def test_early_stopping_applies_to_each_local_training(make_data, make_federation):
    stop = EarlyStopping("val/loss", patience=1, mode="max", check_on_train_epoch_end=False)
    options = {"callbacks": [stop], "limit_val_batches": 1.0, "num_sanity_val_steps": 0}
    data = make_data([20], split=(0.3, 0.0))
    federation = make_federation(
        data, trainer=options, local_epochs=50, batching=Batching(-1), lr=0.5
    )
    first, second = steps(federation), steps(federation)
    assert 1 < first == second < 50


def test_reloading_the_loader_every_epoch_changes_nothing(make_data, make_federation):
    found = []
    for every in (0, 1):
        federation = make_federation(
            make_data([9]), trainer={"reload_dataloaders_every_n_epochs": every}, local_epochs=3
        )
        federation.run()
        found.append(federation.weights())
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_missing_devices_are_refused():
    missing = torch.cuda.device_count() + 5
    with pytest.raises(ValueError, match=rf"trainer.devices=\[{missing}\].*there is"):
        choose_devices("auto", [missing])


def test_devices_are_a_count_on_the_cpu():
    assert choose_devices("cpu", 2) == 2
    assert choose_devices("cpu", "auto") == choose_devices("cpu", -1) == num_cores() >= 1
    assert single_device(2, 1) == 1
    assert single_device([3, 5], 1) == [5]
