import torch
from omegaconf import OmegaConf

from flfast.datamodules.examples import Examples
from flfast.datamodules.transforms import BatchTransform
from flfast.setup import preload as module
from flfast.setup.preload import data_source, preload

CALLS = []


def _examples(path):
    CALLS.append(path)
    targets = torch.tensor([0, 1])
    return Examples(torch.zeros(2, 3), targets, 2, (3,), BatchTransform())


def same_for_all(path):
    return _examples(path)


def by_seed(path, seed):
    return _examples(f"{path} {seed}")


def broken(path):
    raise ValueError(path)


def config(target, path):
    node = {"_target_": f"{__name__}.{target}", "_partial_": True, "path": path}
    others = {
        "engine": "flfast.engines.eager.Eager",
        "compression": "flfast.channel.compression.compression.none",
    }
    targets = {group: {"_target_": name} for group, name in others.items()}
    return OmegaConf.create({"task": "auto", "data": node, **targets})


def test_data_are_loaded_once_for_runs_that_share_them(monkeypatch):
    monkeypatch.setattr(module, "_loaded", {})
    CALLS.clear()
    shared, alone = config("same_for_all", "shared"), config("same_for_all", "alone")
    seeded, wrong = config("by_seed", "seeded"), config("broken", "wrong")
    preload([shared, shared, alone, seeded, seeded, wrong, wrong])
    assert CALLS == ["shared"]
    assert data_source(shared)() is data_source(shared)()
    assert CALLS == ["shared"]
    data_source(alone)()
    data_source(seeded)(seed=1)
    assert CALLS == ["shared", "alone", "seeded 1"]
