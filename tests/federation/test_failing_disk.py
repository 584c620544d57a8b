"""Runs whose disk fills up, or whose folder vanishes."""

import resource
import shutil
import signal
import sys
import time
from itertools import product

import pytest
from sampling import others_slow

from flfast import train
from flfast.checkpoints.folders import checkpoint_folders

SMALL = ("local_epochs=1", "batch_size=100", "engine=eager")
LONG = (*SMALL, "rounds=2000", "callbacks=none", "eval_every=2000", "model=logistic")


def on_a_small_disk():
    """The command, where no file may be larger than 30 kB: the error is that of a full disk."""
    sys.dont_write_bytecode = True  # half a file would break the imports of later runs
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
    train.main()


LOSSES = [*product(("deleted", "moved", "replaced"), (1, 2))]


@pytest.mark.parametrize("ranks", others_slow([1, 2], [1]))
def test_a_model_that_cannot_be_written_is_named_and_all_else_is_there(start, ranks):
    """The figures have more than 30 kB, too; the tables have less."""
    words = (*SMALL, "rounds=2", "callbacks=files", f"trainer.devices={ranks}")
    run = start(on_a_small_disk, *words, "model.hidden=[200]", "hydra.run.dir=run")
    code, stderr = run.end(timeout=120)
    folder = run.folder / "run"
    assert code == 2
    assert "Traceback" not in stderr
    log = (folder / "train.log").read_text()
    for name in ("partition.png", "curves.png", "model.pt"):
        assert str(folder / name) in log + stderr
    assert str(folder) in stderr
    assert not (folder / "model.pt").exists()
    assert len((folder / "metrics.csv").read_text().splitlines()) == 4
    assert (folder / "partition.json").exists()
    assert not checkpoint_folders(folder)


@pytest.mark.parametrize(("loss", "ranks"), others_slow(LOSSES, LOSSES[1:2]))
def test_a_run_without_its_folder_stops(start, loss, ranks):
    run = start(train.main, *LONG, f"trainer.devices={ranks}", "hydra.run.dir=run")
    folder = run.folder / "run"
    end = time.monotonic() + 60
    while not (folder / "metrics.csv").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    time.sleep(0.2)
    if loss == "deleted":
        while folder.exists():  # the run may write into it meanwhile, which stops the deletion
            assert time.monotonic() < end
            shutil.rmtree(folder, ignore_errors=True)
    else:
        folder.rename(run.folder / "elsewhere")
        if loss == "replaced":
            folder.mkdir()
    code, stderr = run.end(timeout=60)
    assert code == 2
    assert "deleted or moved during the run, in round" in stderr
    assert str(folder) in stderr
    assert "Traceback" not in stderr
