"""Reads the environment variables by which a launcher numbers its processes. Torch-free."""

import os

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
