import os
import sys
import warnings

import pytest
from filelock import FileLock

from flfast import train
from flfast.output.callbacks import partition_report
from flfast.output.report.content import Content
from flfast.output.report.page import write_page
from flfast.output.results.runs import find_runs

ALGORITHMS = ("fedavg", "fedprox", "ditto")
SEEDS = (0, 1, 2)
# What the report shows, and no pictures: they take longer than these rounds. The eager engine is
# done with so few steps before the fused one has traced its programs.
SMALL = (
    *("model=logistic", "rounds=3", "local_epochs=1", "trainer.devices=1", "checkpoint.every=0"),
    *("engine=eager", "batch_size=-1", "partition.num_clients=4"),
    *("callbacks=files", "~callbacks.curves", "~callbacks.final_weights", "~callbacks.monitor"),
)


@pytest.fixture(scope="session")
def swept(tmp_path_factory):
    """A real sweep of three algorithms and three seeds, with its comparison and its reports.

    The first of several processes runs it for all; tests read it only.
    """
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "sweep"
    done = folder.with_suffix(".done")
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            sweep(folder)
            done.touch()
    return folder


def sweep(folder):
    words = (f"algorithm={','.join(ALGORITHMS)}", f"seed={','.join(map(str, SEEDS))}")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(f"{partition_report.__name__}.draw_partition", lambda *_, **__: None)
        patch.setattr(sys, "argv", ["flfast", "-m", *words, *SMALL, f"hydra.sweep.dir={folder}"])
        train.main()


@pytest.fixture(scope="session")
def pages(swept, tmp_path_factory):
    """Reports of the sweep, of a run of it, and of its first two seeds."""
    folder = tmp_path_factory.mktemp("pages")
    few = [swept / str(job) for job in (0, 1, 3, 4)]
    for name, runs in {"sweep": [swept], "run": [swept / "0"], "few": few}.items():
        write_page(Content(find_runs(runs)), folder / f"{name}.html")
    return folder
