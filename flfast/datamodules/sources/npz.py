"""Your own arrays: an .npz file, or a folder of .npy files that may be larger than the memory."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flfast.datamodules.bounds import MemoryBoundError, check_archive
from flfast.datamodules.examples import Examples, check_num_classes, check_targets
from flfast.datamodules.mapped import map_array, shared_tensor
from flfast.datamodules.missing import missing_owners, refuse_missing
from flfast.datamodules.number_range import as_float32, regression_targets
from flfast.datamodules.preprocessing import Preprocessing
from flfast.datamodules.sources.held_out import held_out_test
from flfast.datamodules.sources.source import DataSource, RawInputs
from flfast.datamodules.transforms import BatchTransform, image_transform
from flfast.datamodules.value_names import marked_for_testing, number_clients
from flfast.state.image_shape import refuse_channels_last
from flfast.state.options import BelowOne, Count, NonNegativeInt, Positive
from flfast.state.regular_file import reading
from flfast.tasks.names import TaskName

_AXES: dict[str, tuple[str, ...]] = {
    "classification": (),
    "language": ("T",),
    "survival": ("2",),
    "segmentation": ("H", "W"),
}
"""Axes of targets after that of the examples; all other tasks have (C,)."""

_FORMATS = {
    b"\x89HDF": "HDF5; of an h5py.File h5: np.savez('FILE.npz', inputs=h5['X'], targets=h5['Y'])",
    b"PAR1": "Parquet, which data=table reads",
    b"\x93NUM": "an array of .npy; allowed: the folder of these files",
}
"""First bytes of other files, and what to do with them."""


@dataclass(frozen=True, kw_only=True)
class Npz(DataSource):
    """Examples from arrays of equal length N. Nothing in the files is unpickled.

    The inputs of a folder are memory-mapped: training reads the rows that it needs. Those of an
    .npz file are loaded.

    `task` is the run's task, as the targets are read. None: floats [N] or [N, C] are numbers to
    predict, bool [N, C] are labels, integers [N] are classes and [N, T] tokens. A language task
    needs `num_classes`, since tokens of the vocabulary may be missing. The seed determines a
    held-out test set.
    """

    root: str
    inputs: str
    targets: str
    owner: str | None
    is_test: str | None
    num_classes: Count | None
    test_fraction: BelowOne
    mean: list[float] | None
    std: list[Positive] | None
    random_crop: NonNegativeInt
    random_flip: bool
    task: TaskName | None
    seed: int
    kept: Preprocessing | None = None

    def load(self) -> Examples:
        """All examples, in the order of the arrays."""
        names = {key: getattr(self, key) for key in ("inputs", "targets", "owner", "is_test")}
        arrays = read_arrays(Path(self.root).expanduser(), names)
        task = self.task or _task_of(arrays["targets"])
        where = f"data.root={self.root} data.targets={self.targets}"
        targets = arrays["targets"] = _targets(arrays["targets"], task, where)
        self._check_shapes(arrays, task)
        transform = self._transform(arrays["inputs"].shape[1:])
        kept = None if self.kept is None or self.kept.task != task else self.kept.num_outputs
        num_outputs = self.num_classes or kept or _width(targets, task)
        check_targets(where, targets, task, num_outputs)
        is_test = self._is_test(arrays, task)
        clients: dict[str, Any] = {}
        with reading(f"data.root={self.root}", TypeError):
            if "owner" in arrays:
                owner_key = f"data.owner={self.owner}"
                clients = number_clients(arrays["owner"], is_test, where=owner_key)._asdict()
            return Examples(
                inputs=shared_tensor(arrays["inputs"]),
                targets=torch.from_numpy(targets),
                num_classes=num_outputs,
                transform=transform,
                is_test=is_test,
                task=task,
                **clients,
            )

    def raw_inputs(self, key: str | None) -> RawInputs:
        """The array of inputs alone; there is no column to carry along."""
        self.refuse_key(key)
        array = read_arrays(Path(self.root).expanduser(), {"inputs": self.inputs}).get("inputs")
        if array is None:
            raise ValueError(f"data.root={self.root} has no array inputs; say data.inputs=NAME")
        return RawInputs(shared_tensor(array), {"row": np.arange(len(array))})

    def _check_shapes(self, arrays: dict[str, np.ndarray], task: TaskName) -> None:
        inputs = arrays["inputs"]
        if "owner" in arrays and arrays["owner"].dtype.kind not in "iuUS":
            raise ValueError(f"owner is {arrays['owner'].dtype}; allowed: integers or strings")
        if inputs.ndim < 2 or inputs.dtype.kind not in "fiu":
            raise ValueError(
                f"data.inputs={self.inputs} is {inputs.dtype} {list(inputs.shape)}; allowed: "
                "numbers of shape [N, ...], with at least two dimensions"
            )
        for key, array in arrays.items():
            further = _AXES.get(task, ("C",)) if key == "targets" else ()
            fits = len(array) == len(inputs) and array.ndim == 1 + len(further)
            if key != "inputs" and not fits:
                raise ValueError(
                    f"data.root={self.root}: {key} has shape {list(array.shape)} for "
                    f"{len(inputs)} inputs; allowed: [{', '.join((str(len(inputs)), *further))}]"
                    + f", as task={task} reads them"
                    * (key == "targets")
                )

    def _is_test(self, arrays: dict[str, np.ndarray], task: TaskName) -> np.ndarray:
        """The marked test examples, or drawn ones, bool [N]."""
        if "is_test" in arrays:
            return marked_for_testing(f"data.is_test={self.is_test}", arrays["is_test"])
        if "owner" in arrays:
            refuse_missing(f"data.owner={self.owner}", missing_owners(arrays["owner"]))
        classes = arrays["targets"]
        if task != "classification":
            classes = np.zeros(len(classes), dtype=np.int64)
        return held_out_test(classes, test_fraction=self.test_fraction, seed=self.seed)

    def _transform(self, shape: tuple[int, ...]) -> BatchTransform:
        mean, std, crop, flip = self.mean, self.std, self.random_crop, self.random_flip
        if (crop or flip) and len(shape) != 3:
            raise ValueError(
                f"data.random_crop={crop} data.random_flip={flip} need images [channels, height, "
                f"width], an input has shape {list(shape)}"
            )
        if crop or flip:
            refuse_channels_last(shape)
        if (mean is None) != (std is None):
            raise ValueError(f"data.mean={mean} data.std={std}: give both, or neither")
        plain = BatchTransform(random_crop=crop, random_flip=flip)
        if mean is None or std is None:
            return plain
        channels = shape[0] if len(shape) == 3 else 1
        normalised = image_transform(mean=mean, std=std, channels=channels)
        return replace(plain, mean=normalised.mean, std=normalised.std)


def read_arrays(path: Path, names: Mapping[str, str | None]) -> dict[str, np.ndarray]:
    """Arrays by option: memory-mapped from a folder of .npy files, loaded from an .npz file.

    The name "auto" is the array with the option's name, if there is one; None reads no array.

    Raises:
        ValueError: if an array is missing or cannot be read.
    """
    chosen = {key: key if name == "auto" else name for key, name in names.items() if name}
    read = _read_folder if path.is_dir() else _read_file
    arrays = read(path, set(chosen.values()))
    for key, name in chosen.items():
        if name not in arrays and names[key] != "auto":
            raise ValueError(
                f"data.{key}={name}: data.root={path} has no such array; allowed: the name of an "
                "array in the .npz file, or of a file NAME.npy in the folder"
            )
    return {key: arrays[name] for key, name in chosen.items() if name in arrays}


def _read_folder(folder: Path, names: Set[str]) -> dict[str, np.ndarray]:
    paths = {name: folder / f"{name}.npy" for name in names}
    return {name: map_array(path) for name, path in paths.items() if path.is_file()}


def _read_file(path: Path, names: Set[str]) -> dict[str, np.ndarray]:
    try:
        check_archive(path, {f"{name}.npy" for name in names})
        with path.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            return {name: np.ascontiguousarray(archive[name]) for name in names & archive.keys()}
    except MemoryBoundError as error:
        raise ValueError(
            f"data.root={error}; unzip it, and point data.root to the folder of .npy files, "
            "which are memory-mapped"
        ) from None
    except Exception as error:  # noqa: BLE001 - zipfile and zlib raise errors of many types
        reason = _format_of(path) or str(error) or type(error).__name__
        raise ValueError(
            f"data.root={path} is not a readable .npz file, nor a folder of .npy files: {reason}"
        ) from None


def _format_of(path: Path) -> str | None:
    """What a file that is no .npz is, and what to do with it; None for an unknown format."""
    if not path.is_file():  # a pipe would block
        return None
    with path.open("rb") as stream:
        return _FORMATS.get(stream.read(4))


def _task_of(targets: np.ndarray) -> TaskName:
    if targets.dtype.kind == "f":
        return "regression"
    if targets.ndim < 2:
        return "classification"
    return "multilabel" if targets.dtype.kind == "b" else "language"


def _targets(array: np.ndarray, task: str, where: str) -> np.ndarray:
    """Targets in memory, of the type that the task has."""
    kinds, allowed = {
        "regression": ("fiu", "numbers"),
        "multilabel": ("fbiu", "0 and 1"),
        "survival": ("fiu", "numbers"),
    }.get(task, ("iu", "integers from 0"))
    if array.dtype.kind not in kinds:
        raise ValueError(f"{where} is {array.dtype}; allowed for task={task}: {allowed}")
    if task == "regression":
        return regression_targets(where, array)
    if task == "survival":
        return as_float32(where, array)
    if task == "multilabel":
        return array.astype(np.float32)
    # Masks are large, and torch computes with bytes as they are.
    as_stored = task == "segmentation" and array.dtype.itemsize == 1
    return array if as_stored else array.astype(np.int64)


def _width(targets: np.ndarray, task: str) -> int:
    if task == "language":
        raise ValueError(
            "data.num_classes=null: targets [N, T] are tokens; allowed: the size of the "
            "vocabulary, or targets [N] for classes"
        )
    if task == "survival":
        return 1
    if task == "segmentation":
        return max(int(targets.max(initial=0)) + 1, 2)
    if task == "classification":
        key = "data.num_classes=null"
        return check_num_classes(int(targets.max(initial=0)), len(targets), key)
    return int(targets.shape[1])
