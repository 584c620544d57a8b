"""Callbacks with which a rank hangs or fails, for runs in processes of their own."""

import os
import resource
import time

from lightning.pytorch.callbacks import Callback


class Hangs(Callback):
    """Rank 1 does nothing more in round 3, in the first world only."""

    def on_round_start(self, federation, plan, cohort):
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if federation.engine.site.world.rank == 1 and plan.round_idx == 3 and first:
            time.sleep(600)


class FullDisk(Callback):
    """From round 3 on some ranks can write no file of more than 100 kB.

    Args:
        ranks: which.
    """

    def __init__(self, *, ranks: list[int]) -> None:
        self.ranks = ranks

    def on_round_start(self, federation, plan, cohort):
        if federation.engine.site.world.rank in self.ranks and plan.round_idx == 3:
            while not (federation.run_dir / "checkpoints" / "round-000002").exists():
                time.sleep(0.001)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))


class Fails(Callback):
    """A bug in rank 1."""

    def on_round_start(self, federation, plan, cohort):
        if federation.engine.site.world.rank == 1:
            (federation.run_dir / os.environ["TORCHELASTIC_RESTART_COUNT"]).touch()
            raise IndexError("of nothing")
