"""A callback that ends a run in a round, as a signal, an error or a kill does."""

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger

from flfast.state import stop_requests


class Ending(Callback):
    """Ends the run.

    Args:
        how: `stop` by SIGTERM, `fail` with an error, `kill` by SIGKILL; `late` by the launcher's
            request, at every return of a function of rank 0 until its end.
        after: the round in which it does so, once its row is written; -1: before round 0.
        checkpoint: whether it waits for the first checkpoint.
    """

    def __init__(self, *, how, after, checkpoint=False):
        self._how, self._after, self._checkpoint = how, after, checkpoint

    def on_run_start(self, federation):
        self._end(federation, -1)

    def on_round_end(self, federation, row, clients):
        self._end(federation, row["round"])

    def _end(self, federation, round_idx):
        if round_idx != self._after:
            return
        while self._checkpoint and not (federation.run_dir / "checkpoints/round-000001").exists():
            time.sleep(0.01)
        if self._how == "late":
            sys.setprofile(_request_at_every_return)
            return
        if self._how == "fail":
            raise RuntimeError("the run ends here")
        if self._how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        launcher = multiprocessing.parent_process()  # ranks hear of a request from it
        if launcher is None or dist.get_rank() == 0:
            os.kill(launcher.pid if launcher else os.getpid(), signal.SIGTERM)


def _request_at_every_return(frame, event, _):
    if event == "return" and frame.f_code.co_filename != stop_requests.__file__:
        os.kill(os.getpid(), signal.SIGUSR1)


def no_model():
    raise RuntimeError("a model with a mistake")


class InTheWay(Callback):
    """Puts a file where the folder of checkpoints has to be."""

    def on_run_start(self, federation):
        (federation.run_dir / "checkpoints").write_text("in the way")


class NoServer(CSVLogger):
    """Begins a record in the run's folder, and then finds no server."""

    def __init__(self, *, folder):
        Path(folder).mkdir(exist_ok=True)
        Path(folder, "records").write_text("begins")
        raise ConnectionError("no server")
