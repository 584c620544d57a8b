"""The files of a run, as far as a run that takes their place removes them. Torch-free."""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

OF_ITS_END = (
    *("model.pt", "model.safetensors", "shared.pt", "samples.txt", "personal/*.pt"),
    *("adapter/adapter_model.safetensors", "adapter/adapter_config.json"),
    *("curves.png", "partition.png", "events.png", "audit.csv", "audit.png", "report.html"),
)
"""What a run writes at its end."""

OF_ALL_ROUNDS = (
    *("metrics.csv", "clients.csv", "events.csv", "partition.json", "partition.npz"),
    *("devices.png", "checkpoints/round-*", "client_states/rank*", "records/rank*"),
    "run-profile-*",
)
"""What it writes before."""

OF_LOGGERS = ("tensorboard", "mlflow.db", "mlruns", "wandb")
"""What loggers write, from the moment that they are made."""

_OF_COMMANDS = (
    *("model.pt2", "model.onnx", "evaluation/metrics.json", "evaluation/predictions.*"),
    *("evaluation/clients.csv", "evaluation/confusion.csv", "evaluation/confusion.png"),
)
"""What `flfast.evaluate` and `flfast.export` make of it."""

OF_A_RUN = (*OF_ITS_END, *OF_ALL_ROUNDS, *_OF_COMMANDS)
"""All of them, but for the log, which goes on, `.lock`, `.hydra`, `result.json` and records."""


def remove_files(folder: Path, patterns: Iterable[str]) -> None:
    """Delete files and folders of a run, and folders that are empty then.

    Links are deleted; what they point to stays.

    Args:
        folder: of the run.
        patterns: relative to it.

    Raises:
        OSError: if one of them cannot be deleted.
    """
    for pattern in patterns:
        place = (folder / pattern).parent
        if place != folder and place.is_symlink():
            place.unlink()
        for path in folder.glob(pattern):
            remove(path)
        if place != folder:
            with suppress(OSError):  # it does not exist, or holds other files
                place.rmdir()


def remove(path: Path) -> None:
    """Delete a file, a folder with all that it holds, or a link.

    Raises:
        OSError: if it cannot be deleted.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
