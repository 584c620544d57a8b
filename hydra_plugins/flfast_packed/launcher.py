"""The launcher `hydra/launcher=packed`: jobs of a sweep side by side.

Every Hydra program of this environment imports this file at its start, so it imports nothing.
"""

from collections.abc import Sequence

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class PackedLauncher(Launcher):
    """Runs jobs in forked processes that share the imports and the data.

    Args:
        workers: jobs at a time, >= 1; `auto`: one per GPU, or one per core of the CPU.
    """

    def __init__(self, workers: int | str) -> None:
        self.workers = workers

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keep what a job needs."""
        self.hydra_context, self.task_function = hydra_context, task_function
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs; returns their results in order.

        Raises:
            ConfigError: if `workers` is not valid.
            StoppedError: if the sweep received a stop request.
        """
        from flfast.commands.sweeps.packed import launch

        context = (self.hydra_context, self.task_function, self.config)
        return launch(*context, job_overrides, initial_job_idx, workers=self.workers)
