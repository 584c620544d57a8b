"""The launchers `hydra/launcher=packed` and `ray`: jobs of a sweep here, or on a Ray cluster.

Every Hydra program of this environment imports this file at its start, so it imports nothing.
"""

import importlib
from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class PackedLauncher(Launcher):
    """Runs jobs in forked processes that share the imports and the data."""

    module = "flfast.commands.sweeps.packed"

    def __init__(self, **options: Any) -> None:
        self.options = options

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keep what a job needs."""
        self.context = (hydra_context, task_function, config)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs as `launch` in `module` does; returns their results in order."""
        launch = importlib.import_module(self.module).launch
        return launch(*self.context, job_overrides, initial_job_idx, **self.options)


class RayLauncher(PackedLauncher):
    """Runs each job as a task of a Ray cluster."""

    module = "flfast.commands.sweeps.ray_tasks"
