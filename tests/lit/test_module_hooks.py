"""Nothing of a user's module is ignored in silence: the tables against Lightning's own names."""

import inspect

import lightning as L
import pytest
import torch
import torchmetrics
from torch import nn

from flfast.config.known_words import ours
from flfast.lit.module_hooks import DATAMODULE, MODULE, eager_only, overridden
from flfast.lit.user_module import adopt

NEWER = {"remove_ignored_hparams", "to_tensorrt"}
"""Names that the oldest supported Lightning does not have."""

_PLAIN = {
    *("hparams", "hparams_initial", "save_hyperparameters", "remove_ignored_hparams"),
    "load_from_checkpoint",
}
PLAIN_OF_MODULES = _PLAIN | {
    *("log", "log_dict", "print", "all_gather", "freeze", "unfreeze", "to_onnx", "to_torchscript"),
    *("to_tensorrt", "optimizers", "lr_schedulers", "manual_backward", "toggle_optimizer"),
    *("untoggle_optimizer", "toggled_optimizer", "clip_gradients", "trainer", "fabric", "logger"),
    *("loggers", "device", "device_mesh", "dtype", "current_epoch", "global_step", "global_rank"),
    *("local_rank", "on_gpu", "automatic_optimization", "strict_loading", "example_input_array"),
}
"""What users call, and do not override; an own version is what their code then calls."""
REFUSED = {"configure_sharded_model"}

ACTS = {
    *("accelerator", "devices", "precision", "plugins", "fast_dev_run", "accumulate_grad_batches"),
    *("gradient_clip_val", "gradient_clip_algorithm", "deterministic", "benchmark", "profiler"),
    *("inference_mode", "detect_anomaly", "barebones", "sync_batchnorm", "val_check_interval"),
    *("check_val_every_n_epoch", "enable_progress_bar", "enable_model_summary"),
    "reload_dataloaders_every_n_epochs",
    *("limit_train_batches", "limit_val_batches", "limit_test_batches"),
}
"""Options of the Trainer that act on local training as Lightning documents."""


def public(kind, beside=object):
    return {name for name in dir(kind) if name[0] != "_" and not hasattr(beside, name)} - {
        name for name in dir(kind) if name.isupper()
    }


def rows(table, *others):
    return [name for row in (*table.values(), *others) for name in row]


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        (rows(MODULE, PLAIN_OF_MODULES, REFUSED), public(L.LightningModule, nn.Module)),
        (rows(DATAMODULE, _PLAIN, {"from_datasets", "name"}), public(L.LightningDataModule)),
    ],
)
def test_each_name_of_lightning_is_in_exactly_one_row(listed, names):
    assert len(listed) == len({*listed})
    assert names <= {*listed}
    assert {*listed} - names <= NEWER


def test_each_option_of_the_trainer_acts_or_is_refused_by_name():
    options = {*inspect.signature(L.Trainer.__init__).parameters} - {"self"}
    refused = {name for name in options if ours(f"trainer.{name}")}
    assert options - refused == ACTS


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)

    def training_step(self, batch, batch_idx):
        return self.net(batch).sum()

    def on_train_epoch_end(self):
        pass

    def on_fit_start(self):
        """Only words."""

    def on_train_start(self): ...

    def on_fit_end(self):
        return None


class Acting(Net):
    def on_after_backward(self):
        self.count = 1

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return batch

    def teardown(self, stage):
        del self.net


def test_a_hook_that_does_nothing_makes_no_run_eager():
    assert eager_only(Net()) == []
    assert eager_only(adopt(Net())) == []


def test_hooks_of_base_classes_and_of_adopted_modules_count():
    names = ["on_after_backward", "transfer_batch_to_device"]
    below = type("Below", (Acting,), {"on_train_start": lambda self: str(self)})
    assert eager_only(Acting()) == eager_only(adopt(Acting())) == names
    assert eager_only(below()) == ["on_after_backward", "on_train_start", names[1]]
    assert overridden(Acting(), ["teardown", "setup"]) == ["teardown"]


def test_a_hook_of_the_object_itself_counts():
    module = Net()
    module.on_before_backward = lambda loss: torch.relu(loss)
    assert eager_only(module) == ["on_before_backward"]


class Measuring(Net):
    def __init__(self):
        super().__init__()
        self.acc = torchmetrics.MeanMetric()
        self.more = nn.ModuleDict({"a": torchmetrics.MetricCollection([torchmetrics.SumMetric()])})
        self.total = 0

    def on_train_start(self):
        for metric in self.more.values():
            metric.reset()

    def on_train_epoch_end(self):
        self.log_dict({f"train/{n}": m.compute() for n, m in self.more.items()})
        if self.acc.compute() > 0:
            self.log("train/acc", float(self.acc.compute()), prog_bar=True)
        self.acc.reset()


class Resetting(Measuring):
    """Its own method has the name of one of a metric object."""

    def reset(self):
        self.total += 1


def reset():
    """A function of a user's, likewise."""


def put(self):
    self.acc = None


def delete(self):
    del self.more["a"]


MORE = {
    "puts": put,
    "deletes": delete,
    "a function": lambda self: reset(),
    "keeps": lambda self: setattr(self, "total", self.acc.compute()),
    "others": lambda self: self.net.reset(),
    "the Trainer": lambda self: self.log("x", self.trainer.max_epochs),
    "the epoch": lambda self: self.acc.reset() if self.current_epoch else None,
    "what is outside": lambda self: torch.relu(self.acc.compute()),
    "the base": lambda self: super(Net, self).on_train_start(),
}


def test_hooks_that_log_or_reset_metric_objects_make_no_run_eager():
    assert eager_only(Measuring()) == eager_only(adopt(Measuring())) == []


@pytest.mark.parametrize("what", MORE)
def test_hooks_that_do_more_do(what):
    kind = type("More", (Measuring,), {"on_train_start": MORE[what]})
    assert eager_only(kind()) == ["on_train_start"]
    seen = []
    kind.on_train_start = lambda self: seen[0]
    assert eager_only(kind()) == ["on_train_start"]


@pytest.mark.parametrize("adopted", [False, True])
def test_a_method_of_the_users_is_none_of_a_metric_object(adopted):
    kind = type("Own", (Resetting,), {"on_train_epoch_start": lambda self: self.reset()})
    assert "on_train_epoch_start" in eager_only(adopt(kind()) if adopted else kind())
    module = Measuring()
    module.compute = print
    assert eager_only(module) == ["on_train_epoch_end"]


@pytest.mark.parametrize(
    "name", ["optimizer_zero_grad", "backward", "configure_gradient_clipping"]
)
def test_to_do_nothing_in_place_of_lightning_counts(name):
    assert eager_only(type("None", (Net,), {name: lambda self, *_: None})()) == [name]


def test_a_datamodule_that_moves_batches_makes_a_run_eager():
    class Data(L.LightningDataModule):
        def prepare_data(self):
            self.there = True

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch * 2

    assert eager_only(Data()) == ["on_after_batch_transfer"]
    assert eager_only(L.LightningDataModule()) == []
