"""Small runs from Python, and the same by the command line."""

import pytest
import torch
from torch import nn

import flfast

SMALL = ("rounds=2", "local_epochs=1", "batch_size=100", "engine=eager")
QUICK = (*SMALL, "trainer.devices=1", "callbacks=none")


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Run two rounds from Python in a folder of the test."""
    monkeypatch.chdir(tmp_path)

    def quick(*overrides, **objects):
        return flfast.run(*QUICK, *overrides, **objects)

    return quick


@pytest.fixture(scope="session")
def net():
    """A small model for 5 features and 3 classes."""
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 3))


@pytest.fixture(scope="session")
def numbers():
    """(inputs float32 [60, 5], targets int64 [60], clients int64 [60])."""
    rng = torch.Generator().manual_seed(0)
    targets = torch.arange(60) % 3
    return torch.randn(60, 5, generator=rng) + targets[:, None], targets, torch.arange(60) % 4
