import pytest, torch
import lightning as L
from lightning.pytorch.strategies import SingleDeviceStrategy
from strict_device import DEVICE, StrictAccelerator


@pytest.fixture(autouse=True)
def on_device(monkeypatch):
    def make(self, **options):
        if (
            options.get("accelerator") in {"cpu", "auto", None}
            and options.get("strategy", "auto") == "auto"
        ):
            on = {
                "accelerator": StrictAccelerator(),
                "strategy": SingleDeviceStrategy(DEVICE),
                "devices": 1,
            }
            options = {**options, **on}
        plain(self, **options)

    plain = L.Trainer.__init__
    monkeypatch.setattr(L.Trainer, "__init__", make)
