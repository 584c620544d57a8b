"""The LightningDataModule of a project in lightning-hydra-template's shape."""

from pathlib import Path

import torch
from lightning import LightningDataModule
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split


class DigitsDataModule(LightningDataModule):
    """Digits of scikit-learn, written to a folder once."""

    def __init__(self, data_dir, train_val_test_split, batch_size, num_workers, pin_memory):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.data_train = self.data_val = self.data_test = None
        self.batch_size_per_device = batch_size

    @property
    def num_classes(self):
        return 10

    def prepare_data(self):
        digits = load_digits()
        Path(self.hparams.data_dir).mkdir(exist_ok=True)
        pair = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
        torch.save(pair, Path(self.hparams.data_dir) / "digits.pt")

    def setup(self, stage=None):
        if self.trainer is not None:
            if self.hparams.batch_size % self.trainer.world_size != 0:
                raise RuntimeError("the batch size is not divisible by the number of devices")
            self.batch_size_per_device = self.hparams.batch_size // self.trainer.world_size
        if not self.data_train and not self.data_val and not self.data_test:
            whole = TensorDataset(*torch.load(Path(self.hparams.data_dir) / "digits.pt"))
            self.data_train, self.data_val, self.data_test, _ = random_split(
                dataset=whole,
                lengths=[
                    *self.hparams.train_val_test_split,
                    len(whole) - sum(self.hparams.train_val_test_split),
                ],
                generator=torch.Generator().manual_seed(42),
            )

    def _loader(self, dataset, shuffle):
        return DataLoader(
            dataset=dataset,
            batch_size=self.batch_size_per_device,
            num_workers=self.hparams.num_workers,
            pin_memory=self.hparams.pin_memory,
            shuffle=shuffle,
        )

    def train_dataloader(self):
        return self._loader(self.data_train, shuffle=True)

    def val_dataloader(self):
        return self._loader(self.data_val, shuffle=False)

    def test_dataloader(self):
        return self._loader(self.data_test, shuffle=False)

    def teardown(self, stage=None):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass
