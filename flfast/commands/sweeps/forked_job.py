"""A job of a packed sweep, in its own process. Torch-free at import."""

import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus, run_job
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from flfast.commands.sweeps.workers import Slot
from flfast.distributed.child import begin_child
from flfast.state.messages import one_line
from flfast.state.output_streams import surviving_output

OUTPUT = "output.log"
"""File in a job's folder: what it would have written to the screen."""


def run_forked(
    context: HydraContext,
    task: TaskFunction,
    config: DictConfig,
    slot: Slot,
    connection: Connection,
    parent: int,
) -> None:
    """Run a job in this process, which was forked for it, and send its `JobReturn`."""
    begin_child(parent)
    for name in ("SIGTERM", "SIGINT", "SIGUSR1"):  # the sweep's handlers
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    # Ctrl-C reaches all processes of a group. The sweep passes it on, once.
    os.setpgid(0, 0)
    os.environ |= slot
    folder = Path(config.hydra.runtime.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / OUTPUT).open("a", encoding="utf-8", buffering=1) as output:
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            stream.flush()
            os.dup2(output.fileno(), number)
        sys.stdout = sys.stderr = output
        with surviving_output():
            result = run_job(
                hydra_context=context,
                task_function=task,
                config=config,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
        connection.send_bytes(_pickled(result))


def _pickled(result: JobReturn) -> bytes:
    try:
        data = pickle.dumps(result)
        pickle.loads(data)  # some exceptions cannot be made again
        return data
    except Exception:  # noqa: BLE001 - an object of the user's may raise any
        if result.status == JobStatus.FAILED:
            result.return_value = RuntimeError(one_line(result._return_value))  # noqa: SLF001
        return pickle.dumps(result)
