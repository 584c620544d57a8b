import pytest
from omegaconf import OmegaConf

from flfast.commands.sweeps.workers import launcher_overrides, slots
from flfast.config.errors import ConfigError
from flfast.state.machine import num_cores

PACKED = "hydra_plugins.flfast_packed.launcher.PackedLauncher"


def job(devices="auto", *, threads=1, accelerator="cpu", launcher=PACKED):
    trainer = {"devices": devices, "accelerator": accelerator}
    hydra = {"launcher": {"_target_": launcher}}
    return OmegaConf.create({"trainer": trainer, "threads": threads, "hydra": hydra})


def test_a_job_of_our_launchers_has_one_rank_unless_the_user_asks_for_several():
    assert launcher_overrides(job()) == launcher_overrides(job(-1)) == ["trainer.devices=1"]
    assert launcher_overrides(job(2)) == launcher_overrides(job([0])) == []
    assert launcher_overrides(job(launcher="x.RayLauncher")) == ["trainer.devices=1"]
    assert launcher_overrides(job(launcher="BasicLauncher")) == []


def test_jobs_on_the_cpu_share_the_cores():
    assert len(slots("auto", [job(1)])) == num_cores()
    assert len(slots("auto", [job(1), job(num_cores())])) == 1
    assert len(slots("auto", [job(1, threads=100)])) == 1
    assert len(slots(7, [job(1)])) == 7


def test_jobs_take_gpus_in_turn(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,-1,7")
    on_gpus = [job(1, accelerator="auto")]
    names = [slot["CUDA_VISIBLE_DEVICES"] for slot in slots(3, on_gpus)]
    assert names == ["2", "5", "2"]
    assert len(slots("auto", on_gpus)) == 2
    assert slots(1, [job(1)])[0] == {}
    assert slots(1, [job(2, accelerator="auto")])[0] == {}


def test_hidden_gpus_are_none(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert slots(2, [job(1, accelerator="auto")]) == [{}] * 2


@pytest.mark.parametrize("workers", [0, -1, "all", None, 1.5])
def test_a_wrong_number_is_refused(workers):
    with pytest.raises(ConfigError, match=r"workers=.*; allowed: auto, or a number"):
        slots(workers, [job(1)])
