"""Reads the environment variables by which a launcher numbers its processes. Torch-free."""

import os
import platform

import psutil

LEAST = {
    "RANK": 0,
    "WORLD_SIZE": 1,
    "LOCAL_RANK": 0,
    "LOCAL_WORLD_SIZE": 1,
    "TORCHELASTIC_RESTART_COUNT": 0,
    "SLURM_STEP_NUM_TASKS": 1,
    "SLURM_PROCID": 0,
    "MASTER_PORT": 0,
}
"""Variables that torchrun, TorchElastic or srun set, and the smallest value of each."""


UNNAMED = "process "
"""Beginning of the name of a launch that its launcher did not name."""


def launch_id() -> str | None:
    """What tells the launch of this world from others; None for a process that nobody launched.

    It is the same when ranks, nodes or the job are started again: torchrun's `--rdzv-id`, or the
    number of SLURM's job. A launch without a name is known by its process on this node.
    """
    if "RANK" in os.environ:
        name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
        if name != "none":
            return f"torchrun {name}"
        started = psutil.Process(os.getppid()).create_time()
        return f"{UNNAMED}{os.getppid()} of {platform.node()}, started {started}"
    if integer("SLURM_STEP_NUM_TASKS", 1) > 1 and "SLURM_JOB_ID" in os.environ:
        return f"slurm {os.environ['SLURM_JOB_ID']}"
    return None


def integer(name: str, default: int) -> int:
    """A variable of the environment, one of `LEAST`.

    Raises:
        ValueError: naming the variable, its value and what is allowed.
    """
    text = os.environ.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or int(text) < LEAST[name]:
        raise ValueError(
            f"environment variable {name}={text}: must be an integer >= {LEAST[name]}, as a "
            f"launcher such as torchrun sets it; unset it to run without one"
        )
    return int(text)
