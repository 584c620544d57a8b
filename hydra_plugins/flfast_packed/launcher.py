"""The launchers `hydra/launcher=packed` and `ray`: jobs of a sweep here, or on a Ray cluster.

Every Hydra program of this environment imports this file at its start, so it imports nothing.
"""

from collections.abc import Sequence

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class _Launcher(Launcher):
    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keep what a job needs."""
        self.context = (hydra_context, task_function, config)


class PackedLauncher(_Launcher):
    """Runs jobs in forked processes that share the imports and the data.

    Args:
        workers: jobs at a time, >= 1; `auto`: one per GPU, or one per core of the CPU.
    """

    def __init__(self, workers: int | str) -> None:
        self.workers = workers

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs; returns their results in order.

        Raises:
            ConfigError: if `workers` is not valid.
            StoppedError: if the sweep received a stop request.
        """
        from flfast.commands.sweeps.packed import launch

        return launch(*self.context, job_overrides, initial_job_idx, workers=self.workers)


class RayLauncher(_Launcher):
    """Runs each job as a task of a Ray cluster.

    Args:
        gpus: GPUs of a job, >= 0; a fraction is a share of one.
    """

    def __init__(self, gpus: float) -> None:
        self.gpus = gpus

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs, as `PackedLauncher` does."""
        from flfast.commands.sweeps.ray_tasks import launch

        return launch(*self.context, job_overrides, initial_job_idx, gpus=self.gpus)
