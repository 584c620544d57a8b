"""The files of a run, as far as a run that takes their place removes them. Torch-free."""

import shutil
from collections.abc import Iterable
from pathlib import Path

OF_ITS_END = (
    *("model.pt", "model.safetensors", "shared.pt", "personal", "adapter", "samples.txt"),
    *("curves.png", "partition.png", "events.png", "audit.csv", "audit.png", "report.html"),
)
"""What a run writes at its end."""

OF_ALL_ROUNDS = (
    *("metrics.csv", "clients.csv", "events.csv", "partition.json", "partition.npz"),
    *("devices.png", "checkpoints", "client_states", "records", "run-profile-*"),
    *("tensorboard", "mlflow.db", "mlruns", "wandb"),
)
"""What it writes before."""

_OF_COMMANDS = ("evaluation", "model.pt2", "model.onnx")
"""What `flfast.evaluate` and `flfast.export` make of it."""

OF_A_RUN = (*OF_ITS_END, *OF_ALL_ROUNDS, *_OF_COMMANDS)
"""All of them, but for the log, which goes on, and for `.lock`, `.hydra` and `result.json`."""


def remove_files(folder: Path, patterns: Iterable[str]) -> None:
    """Delete files and folders of a run; what a link points to stays.

    Args:
        folder: of the run.
        patterns: relative to it.

    Raises:
        OSError: if one of them cannot be deleted.
    """
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
