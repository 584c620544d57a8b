"""Callbacks that make a rank hang, fail or stop, for runs in separate processes."""

import os
import resource
import signal
import sys
import time

from lightning.pytorch.callbacks import Callback


class Hangs(Callback):
    """Makes rank 1 hang in round 3, unless the world was restarted."""

    def on_round_start(self, federation, plan, cohort):
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if federation.engine.site.world.rank == 1 and plan.round_idx == 3 and first:
            time.sleep(600)


class FullDisk(Callback):
    """Limits files to 100 kB from round 3 on, as a full disk would.

    Args:
        ranks: ranks with the limit.
    """

    def __init__(self, *, ranks: list[int]) -> None:
        self.ranks = ranks

    def on_round_start(self, federation, plan, cohort):
        if federation.engine.site.world.rank in self.ranks and plan.round_idx == 3:
            while not (federation.run_dir / "checkpoints" / "round-000002").exists():
                time.sleep(0.001)
            sys.dont_write_bytecode = True  # half a file would break the imports of later runs
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))


class Fails(Callback):
    """Raises an exception in rank 1, after counting the attempt in a file."""

    def on_round_start(self, federation, plan, cohort):
        if federation.engine.site.world.rank == 1:
            (federation.run_dir / os.environ["TORCHELASTIC_RESTART_COUNT"]).touch()
            raise IndexError("of nothing")


class Signals(Callback):
    """Sends this process a signal: in a round, or while the files of a run's end are written.

    Args:
        name: of the signal.
        moment: number of the round, or `end`.
    """

    def __init__(self, *, name: str, moment: int | str) -> None:
        self.number, self.moment = getattr(signal, name), moment

    def on_round_start(self, federation, plan, cohort):
        if plan.round_idx == self.moment:
            os.kill(os.getpid(), self.number)

    def on_run_complete(self, federation):
        if self.moment == "end":
            os.kill(os.getpid(), self.number)
