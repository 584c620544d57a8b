"""Callbacks that a program gives as objects, as Lightning's Trainer takes them."""

import lightning as L
import lightning_modules as modules
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer
from torch.utils.data import TensorDataset

import flfast
from flfast.config.errors import ConfigError

VALIDATED = ("trainer.limit_val_batches=1.0", "split.val=0.3")


class Epochs(L.Callback):
    """Counts rounds, round 0 included, and local epochs of clients."""

    def __init__(self):
        self.rounds = self.epochs = 0

    def on_round_end(self, federation, row, clients):
        self.rounds += 1

    def on_train_epoch_end(self, trainer, module):
        self.epochs += 1


def test_a_callback_of_a_program_is_called(quick, numbers):
    """It is that object, beside those of the config, and one alone needs no list."""
    counted = Epochs()
    run = quick("callbacks=default", "local_epochs=3", data=numbers, callbacks=counted)
    assert (counted.rounds, counted.epochs) == (3, 2 * 4 * 3)
    assert (run.folder / "model.pt").is_file()


def test_two_of_one_class_have_names_of_their_own(quick, numbers):
    both = [Epochs(), Epochs()]
    quick(data=numbers, callbacks=both)
    assert [one.rounds for one in both] == [3, 3]


@pytest.mark.parametrize("patience", [1, 3])
def test_early_stopping_monitors_what_the_module_logs(quick, numbers, patience):
    """A threshold that is never reached ends the epochs of each client after the patience."""
    counted, stopping = Epochs(), EarlyStopping("val/loss", patience=patience, min_delta=100)
    inputs = torch.nn.functional.pad(numbers[0], (0, 3))
    objects = {"data": TensorDataset(inputs, numbers[1]), "client": numbers[2].tolist()}
    words = (*VALIDATED, "local_epochs=6", "batch_size=6")
    quick(*words, model=modules.Measured(), callbacks=[stopping, counted], **objects)
    assert counted.epochs == 2 * 4 * (patience + 1)


@pytest.mark.parametrize(
    ("callback", "words", "said"),
    [
        (
            EarlyStopping("val_loss"),
            VALIDATED,
            "allowed: val/loss, with trainer.limit_val_batches",
        ),
        (ModelCheckpoint(), (), "callbacks.ModelCheckpoint: ModelCheckpoint: .*keep_best"),
        (EarlyStopping("val/f9"), VALIDATED, "allowed: val/loss, with trainer.limit_val_batches"),
        (EarlyStopping("val/loss"), (), "with trainer.limit_val_batches=1.0; stop=plateau"),
        (
            EarlyStopping("val/loss"),
            (*VALIDATED, "split.val=0", "optimized_metric=train/loss"),
            "no client has validation examples",
        ),
        ("Timer", (), "callbacks= has a str; allowed: objects of lightning.Callback"),
    ],
)
def test_what_cannot_work_is_refused(quick, numbers, callback, words, said):
    with pytest.raises(ConfigError, match=said):
        quick(*words, data=numbers, callbacks=[callback])


def test_a_saved_run_goes_on_with_the_same_callbacks(quick, numbers, tmp_path):
    folder = tmp_path / "run"
    timed = {"callbacks": [Timer("01:00:00:00")], "folder": folder, "data": numbers}
    quick("checkpoint.every=1", "callbacks=default", **timed)
    again = quick("checkpoint.every=1", "callbacks=default", "resume=auto", "rounds=3", **timed)
    assert len(again.history) == 4
    assert "global/accuracy" in flfast.Run(folder, data=numbers).evaluate()
