import logging
import os
import time

import pytest
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import OmegaConf

from flfast.commands.sweeps.job_lines import SweepProgress, read_space
from flfast.config.composition import CONF
from flfast.output.results.outcome import RESULT, Result, write_result

SOURCES = [{"path": CONF, "schema": "file", "provider": "main"}]
BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


def sweep(*overrides, folder="unused", **sweeper):
    node = {"_target_": BASIC, "params": None, **sweeper}
    hydra = {
        "mode": RunMode.MULTIRUN,
        "overrides": {"task": list(overrides)},
        "sweeper": node,
        "sweep": {"dir": str(folder)},
        "runtime": {"output_dir": f"{folder}/0", "config_sources": SOURCES},
        "job": {"num": 0},
    }
    return OmegaConf.create({"hydra": hydra})


@pytest.mark.parametrize(
    ("overrides", "sweeper", "keys", "num"),
    [
        (["seed=1,2,3", "rounds=2"], {}, ["seed"], 3),
        (["seed=range(4)", "+a.b=x,y"], {}, ["seed", "a.b"], 8),
        (["rounds=2"], {}, [], 1),
        (["rounds=2"], {"params": {"seed": "0,1"}}, ["seed"], 2),
        (["algorithm=glob(fedprox)", "seed=0,1"], {}, ["algorithm", "seed"], 2),
        (["rounds=2"], {"params": {"lr": "interval(0, 1)"}, "n_trials": 20}, ["lr"], 20),
    ],
)
def test_what_a_sweep_varies(overrides, sweeper, keys, num):
    assert read_space(sweep(*overrides, **sweeper)) == (keys, num)


def result(status, value):
    found = JobReturn(status=status)
    found.return_value = value
    return found


def test_a_line_says_how_much_is_left(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    config = sweep("seed=0,1,2,3,4", folder=tmp_path)
    for num in range(2):
        (tmp_path / str(num) / ".hydra").mkdir(parents=True)
    failed = Result("failed", {}, error="lr=0")
    write_result(tmp_path / "1", failed)
    os.utime(tmp_path / "1" / RESULT, (0, 0))  # of an earlier start: it will run again
    write_result(tmp_path, Result("stopped", {}))
    progress = SweepProgress()
    progress.on_multirun_start(config)
    time.sleep(0.02)  # times of files are coarse
    write_result(tmp_path / "0", Result("finished", {}))
    progress.on_job_end(config, result(JobStatus.COMPLETED, 0.5))
    write_result(tmp_path / "1", failed)
    progress.on_job_end(config, result(JobStatus.FAILED, ValueError("lr=0:\n not allowed")))
    progress.on_job_end(config, result(JobStatus.FAILED, OSError("full")))
    lines = [record.message for record in caplog.records]
    assert lines[0].startswith("job 0 is done: no numbers, 4 of 5 jobs left, about ")
    assert lines[1].startswith("job 0 failed: lr=0: not allowed, 3 of 5 jobs left, about ")
    assert lines[2] == "traceback of job 0:"
    assert len(lines) == 4  # an OSError needs no traceback
