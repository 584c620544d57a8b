"""The runs of rows: composed as jobs of a sweep, and run side by side where they are missing.

Torch-free at import.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hydra import version
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.utils import JobReturn
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf

from flfast.commands.sweeps.job_folders import JobConfig, JobFolders, failure_of
from flfast.commands.sweeps.job_lines import SweepProgress
from flfast.commands.sweeps.packed import run_batch
from flfast.config.composition import VERSION_BASE, compose, sources_of
from flfast.config.decision import decision
from flfast.config.errors import ConfigError
from flfast.config.implied import implied
from flfast.config.job import HydraJob
from flfast.config.run_folder import RunFolder, hold_folder
from flfast.output.results.formats import readable
from flfast.output.results.outcome import holds_run
from flfast.state.messages import one_line
from flfast.state.real_folder import real_folder
from flfast.zoo.commands.conformance.row_files import ConformanceRow, RowExamples

_ALWAYS = (
    *("callbacks=none", "trainer.devices=1", "strategy=single", "resume=auto"),
    "optimized_metric=train/loss",
)
_OF_EXAMPLES = ("data=npz", "partition=natural", "model=logistic", "split.val=0", "split.test=0")


def run_folder(folder: Path, row: ConformanceRow, variant: str, seed: int) -> Path:
    """Folder of a run of a row."""
    return real_folder(folder) / row.name / f"{variant}-{seed}"


def run_rows(
    rows: Sequence[ConformanceRow], folder: Path, task: TaskFunction, *, workers: int | str
) -> dict[Path, str]:
    """Run the jobs of rows that have not finished in the folder with the same config.

    A job that was stopped goes on; one with another config is replaced.

    Args:
        rows: what they need is there.
        folder: of all runs; no other process may run rows there.
        task: trains with a composed config.
        workers: jobs at a time, see `slots`.

    Returns:
        The error of each run that failed, by its folder.

    Raises:
        ConfigError: if a job cannot be composed, or another process has the folder.
        StoppedError: if a job received a stop request.
    """
    place = real_folder(folder)
    with hold_folder(place, key="folder"):
        jobs: list[JobConfig] = []
        for row in rows:
            for words, run in _runs(row, place):
                job = _job(len(jobs), words, run)
                if job is not None:
                    jobs.append(job)
        if not jobs:
            return {}
        version.setbase(VERSION_BASE)  # Hydra's runner of jobs reads it
        callbacks = Callbacks()
        callbacks.callbacks = [RunFolder(), RowProgress(len(jobs)), JobFolders()]
        loader = ConfigLoaderImpl(sources_of(jobs[0].config))
        results = run_batch(HydraContext(loader, callbacks), task, jobs, workers=workers)
    pairs = zip(jobs, map(failure_of, results), strict=True)
    # The folder of a run that was refused may hold an earlier one.
    return {job.folder: one_line(error) for job, error in pairs if error is not None}


def _runs(row: ConformanceRow, folder: Path) -> list[tuple[list[str], Path]]:
    """Overrides and folder of each run of a row."""
    settings = [*_ALWAYS, *row.settings]
    if row.examples is not None:
        data = folder / row.name / "examples"
        _write(row.examples, data)
        quoted = str(data).replace("\\", "\\\\").replace("'", "\\'")
        settings = [*_ALWAYS, *_OF_EXAMPLES, f"data.root='{quoted}'", *row.settings]
    return [
        ([*settings, *variant.settings, f"seed={seed}"], run_folder(folder, row, name, seed))
        for name, variant in row.variants.items()
        for seed in row.seeds
    ]


def _write(examples: RowExamples, folder: Path) -> None:
    """Write examples as the arrays that `data=npz` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    table = np.array([*examples.train, *examples.test])
    arrays: dict[str, np.ndarray] = {
        "owner": table[:, 0].astype(np.int64),
        "inputs": table[:, 1:2].astype(np.float32),
        "targets": table[:, 2:].astype(np.float32),
        "is_test": np.arange(len(table)) >= len(examples.train),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def _job(num: int, words: list[str], folder: Path) -> JobConfig | None:
    """The job that has to run for a folder to hold a finished run; None if it does."""
    composed = compose([*words, *implied(words)])
    OmegaConf.set_struct(composed.hydra, value=False)
    hydra = composed.hydra
    hydra.mode, hydra.job.name, hydra.runtime.output_dir = RunMode.MULTIRUN, "train", str(folder)
    hydra.job.id = hydra.job.num = num
    hydra.sweep.dir, hydra.sweep.subdir = str(folder.parent), folder.name
    if holds_run(folder):
        try:
            config = HydraJob.of(composed).phases()[0].config
            if decision(config, folder).becomes == "unchanged":
                return None
        except ConfigError:  # of another config, or a wrong one, which the run refuses
            composed.resume, composed.overwrite = None, True
    return JobConfig(num, composed, folder)


class RowProgress(SweepProgress):
    """A line for every run that ends, and how much is left."""

    def __init__(self, num_jobs: int) -> None:
        self._total, self._done, self._began = num_jobs, 0, time.monotonic()

    def show(self, config: DictConfig, job_return: JobReturn) -> None:
        """Write the line of a run."""
        self._done += 1
        left = self._total - self._done
        seconds = left * (time.monotonic() - self._began) / self._done
        folder = Path(config.hydra.runtime.output_dir)
        error = failure_of(job_return)
        end = "done" if error is None else f"failed: {one_line(error)}"
        rest = f", {left} of {self._total} runs left, about {readable(seconds)}" if left else ""
        sys.stdout.write(f"{folder.parent.name}/{folder.name} {end}{rest}\n")
        sys.stdout.flush()
