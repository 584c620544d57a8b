"""The files of a run, as far as a run that takes their place removes them. Torch-free."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from flfast.state.options import FORMATS


def _pictures(*names: str) -> list[str]:
    return [f"{name}.{form}" for name in names for form in FORMATS]


OF_ITS_END = (
    *("model.pt", "model.safetensors", "model.ckpt", "shared.pt", "samples.txt", "personal/*.pt"),
    *("adapter/adapter_model.safetensors", "adapter/adapter_config.json"),
    *_pictures("curves", "partition", "events", "masks"),
    *("masks.csv", "audit.csv", "audit.png", "report.html"),
)
"""What a run writes at its end."""

OF_ALL_ROUNDS = (
    *("metrics.csv", "clients.csv", "events.csv", "partition.json", "partition.npz"),
    "preprocessing.json",
    *_pictures("devices"),
    *("checkpoints/round-*", "client_states/rank*", "records/rank*"),
    "run-profile-*",
)
"""What it writes before."""

OF_LOGGERS = ("tensorboard", "mlflow.db", "mlruns", "wandb")
"""What loggers write, from the moment that they are made."""

_OF_COMMANDS = (
    *(
        "model.pt2",
        "model.onnx",
        "predictions.csv",
        "evaluation/metrics.json",
        "evaluation/predictions.*",
    ),
    *("evaluation/clients.csv", "evaluation/confusion.csv", "evaluation/confusion.png"),
    *("evaluation/survival.csv", "evaluation/survival.png"),
    *("evaluation/forecasts.csv", "evaluation/forecasts.png"),
)
"""What `flfast.evaluate` and `flfast.export` make of it."""

OF_A_RUN = (*OF_ITS_END, *OF_ALL_ROUNDS, *_OF_COMMANDS)
"""All of them, but for the log, which goes on, `.lock`, `.hydra`, `result.json` and records."""


def remove_files(folder: Path, patterns: Iterable[str]) -> None:
    """Delete files and folders of a run by patterns, and folders that are empty then.

    Links are deleted; what they point to stays.

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


@contextmanager
def records_aside(folder: Path, *, kept: bool) -> Iterator[None]:
    """Make new records of loggers inside; if that fails, the folder has those of before.

    Loggers begin a record or a database as they are made, and some refuse afterwards, such as
    without a key. A process that is killed meanwhile leaves them in `.records-before*`.

    Args:
        folder: folder of the run.
        kept: whether loggers find the records of before, and may go on with them.
    """
    with TemporaryDirectory(prefix=".records-before", dir=folder) as aside:
        for path in [folder / name for name in OF_LOGGERS if os.path.lexists(folder / name)]:
            if not kept:
                path.rename(Path(aside, path.name))
            elif path.is_dir():
                shutil.copytree(path, Path(aside, path.name), symlinks=True)
            else:
                shutil.copy2(path, Path(aside, path.name))
        try:
            yield
        except BaseException:
            remove_files(folder, OF_LOGGERS)
            for path in Path(aside).iterdir():
                path.rename(folder / path.name)
            raise
