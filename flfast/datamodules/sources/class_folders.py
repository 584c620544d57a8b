"""Image files in one folder per class."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)


def list_class_folders(folder: Path) -> tuple[list[tuple[str, int]], list[str]]:
    """(path, class) of every image below `folder/CLASS/`, and the names of the classes.

    Classes are sorted by name, and so are the files of a class. Links are followed, but each
    folder is read once: a link to one that is read already is left out, and logged.

    Raises:
        OSError: if there is no such folder, no class, or a class without images.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    if not classes:
        raise FileNotFoundError(f"Couldn't find any class folder in {folder}.")
    seen = {(folder / name).resolve() for name in classes} | {folder.resolve()}
    skipped: list[str] = []
    samples, empty = [], []
    for label, name in enumerate(classes):
        files = sorted(_files(folder / name, seen, skipped))
        own = [str(Path(*file)) for file in files if file[1].lower().endswith(IMG_EXTENSIONS)]
        samples += [(path, label) for path in own]
        empty += [] if own else [name]
    if skipped:
        log.warning(
            "%s: %d links lead to folders that are read already and are left out, such as %s",
            *(folder, len(skipped), skipped[0]),
        )
    if empty:
        raise FileNotFoundError(
            f"Found no valid file for the classes {', '.join(empty)}. Supported extensions are: "
            f"{', '.join(IMG_EXTENSIONS)}"
        )
    return samples, classes


def _files(folder: Path, seen: set[Path], skipped: list[str]) -> Iterator[tuple[str, str]]:
    """(folder, name) of all files below a folder; adds to the folders that were seen."""
    for where, folders, names in os.walk(folder, followlinks=True):
        for name in list(folders):
            path = Path(where, name)
            if (real := path.resolve()) in seen:
                folders.remove(name)
                skipped.append(str(path))
            seen.add(real)
        yield from ((where, name) for name in names)
