"""Your own images, in one folder per class."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.preprocessing import Preprocessing
from flfast.datamodules.sources.held_out import held_out_test
from flfast.datamodules.sources.hidden_files import say_left_out, visible
from flfast.datamodules.sources.source import ImageSource, RawInputs
from flfast.state.options import BelowOne
from flfast.state.regular_file import reading, require_file


@dataclass(frozen=True, kw_only=True)
class ImageFolder(ImageSource):
    """Images below `root/train/CLASS/` and `root/test/CLASS/`, or below `root/CLASS/`.

    The seed determines a held-out test set.
    """

    root: str
    channels: Literal[1, 3]
    test_fraction: BelowOne
    seed: int
    kept: Preprocessing | None = None

    def load(self) -> Examples:
        """All images, by class and name of the file.

        Raises:
            ValueError: if there are no class folders, a file is not an image, sizes differ, or the
                cache cannot be written. If images are decoded on access and scaled, a broken file
                is only found on access.
        """
        paths, targets, classes, is_test = _list_files(Path(self.root).expanduser())
        if self.kept is not None and self.kept.classes:
            targets, classes = self._as_trained(targets, classes, self.kept.classes)
        if is_test is None:
            is_test = held_out_test(targets, test_fraction=self.test_fraction, seed=self.seed)
        return Examples(
            **self.read_images(paths, self.channels),
            targets=torch.from_numpy(targets),
            num_classes=len(classes),
            is_test=is_test,
            class_names=tuple(classes),
        )

    def raw_inputs(self, key: str | None) -> RawInputs:
        """All images below `root`, in whatever folders, by their paths."""
        self.refuse_key(key)
        from torchvision.datasets.folder import IMG_EXTENSIONS

        root, hidden = Path(self.root).expanduser(), list[Path]()
        with reading("data.root must be a folder of images"):
            require_file(root)
        names: list[str] = []
        for where, folders, files in os.walk(root):
            folders[:] = sorted(visible(where, folders, hidden))
            shown = (Path(where, file).relative_to(root) for file in visible(where, files, hidden))
            names += (str(file) for file in shown if file.suffix.lower() in IMG_EXTENSIONS)
        if not names:
            raise ValueError(f"data.root={self.root} has no images: {', '.join(IMG_EXTENSIONS)}")
        say_left_out(hidden, IMG_EXTENSIONS)
        names.sort()
        read = self.read_images([root / name for name in names], self.channels)
        return RawInputs(read["inputs"], {"row": np.arange(len(names)), "file": np.array(names)})

    def _as_trained(
        self, targets: np.ndarray, classes: list[str], kept: Sequence[str]
    ) -> tuple[np.ndarray, list[str]]:
        """Labels by the numbers that a trained model has for the classes, and their names."""
        if unknown := [name for name in classes if name not in kept]:
            raise ValueError(
                f"data.root={self.root} has the class {unknown[0]!r}, which the model has not "
                f"seen; allowed: {', '.join(kept)}"
            )
        return np.array([kept.index(name) for name in classes])[targets], [*kept]


def _list_files(folder: Path) -> tuple[list[str], np.ndarray, list[str], np.ndarray | None]:
    """Paths, labels int64 [N], class names, and is_test bool [N] if there is a folder test/.

    Classes are sorted by name, and so are the files of a class.
    """
    has_train, has_test = (folder / "train").is_dir(), (folder / "test").is_dir()
    if has_test and not has_train:
        raise ValueError(f"data.root={folder} has a folder test/ but no train/")
    samples, classes = _list_part(folder / "train" if has_train else folder)
    num_train = len(samples)
    if has_test:
        test_samples, test_classes = _list_part(folder / "test")
        if not set(test_classes) <= set(classes):
            unknown = sorted(set(test_classes) - set(classes))
            raise ValueError(f"data.root={folder}: test/ has classes {unknown} that train/ lacks")
        samples += [(path, classes.index(test_classes[label])) for path, label in test_samples]
    targets = np.array([label for _, label in samples], dtype=np.int64)
    is_test = np.arange(len(samples)) >= num_train if has_test else None
    return [path for path, _ in samples], targets, classes, is_test


def _list_part(folder: Path) -> tuple[list[tuple[str, int]], list[str]]:
    with reading("data.root must hold images in train/CLASS/ and test/CLASS/, or in CLASS/"):
        return list_class_folders(folder)


def list_class_folders(folder: Path) -> tuple[list[tuple[str, int]], list[str]]:
    """(path, class) of every image below `folder/CLASS/`, and the names of the classes.

    Classes are sorted by name, and so are the files of a class. What is hidden is left out. Links
    out of the folder are followed; what is inside is read in its own place. Each folder is read
    once.

    Raises:
        OSError: if there is no such folder, no class, or a class without images.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    root = folder.resolve()
    seen, hidden = {root}, list[Path]()

    def is_new(place: Path) -> bool:
        real = place.resolve()
        if real in seen or (place.is_symlink() and real.is_relative_to(root)):
            return False
        seen.add(real)
        return True

    inside = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    classes = sorted(visible(folder, inside, hidden))
    if not classes:
        raise FileNotFoundError(f"Couldn't find any class folder in {folder}.")
    samples = []
    for label, name in enumerate(classes):
        files, place = [], folder / name
        for where, folders, names in os.walk(place, followlinks=True) if is_new(place) else ():
            shown = visible(where, folders, hidden)
            folders[:] = [below for below in shown if is_new(Path(where, below))]
            shown = visible(where, names, hidden)
            files += [(where, file) for file in shown if file.lower().endswith(IMG_EXTENSIONS)]
        if not files:
            raise FileNotFoundError(
                f"Found no valid file for the class {name}. Supported extensions are: "
                f"{', '.join(IMG_EXTENSIONS)}"
            )
        samples += [(str(Path(*file)), label) for file in sorted(files)]
    say_left_out(hidden, IMG_EXTENSIONS)
    return samples, classes
