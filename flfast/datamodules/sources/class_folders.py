"""Image files in one folder per class."""

import logging
import os
from collections.abc import Sequence
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
    found, skipped = _files(folder, classes)
    samples, empty = [], []
    for label, name in enumerate(classes):
        files = sorted(found[name])
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


def _files(
    folder: Path, classes: Sequence[str]
) -> tuple[dict[str, list[tuple[str, str]]], list[str]]:
    """(folder, name) of all files of each class; and links to folders that are read already."""
    files: dict[str, list[tuple[str, str]]] = {name: [] for name in classes}
    seen, skipped = {os.path.realpath(folder)}, []
    links = [(name, str(folder / name)) for name in classes if (folder / name).is_symlink()]
    real = [(name, str(folder / name)) for name in classes if not (folder / name).is_symlink()]
    # A folder belongs to the class in which it is. Links are followed when all of these are read.
    for places in (real, links):
        for name, place in places:
            if os.path.realpath(place) in seen:
                skipped.append(place)
                continue
            for where, folders, names in os.walk(place):
                seen.add(os.path.realpath(where))
                files[name] += [(where, file) for file in names]
                paths = {below: Path(where, below) for below in folders}
                links += [(name, str(path)) for path in paths.values() if path.is_symlink()]
                folders[:] = [b for b, path in paths.items() if os.path.realpath(path) not in seen]
    return files, skipped
