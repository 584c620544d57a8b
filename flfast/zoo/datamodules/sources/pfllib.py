"""Datasets that PFLlib has already partitioned: `{train,test}/{client}.npz`.

Zhang et al., PFLlib: A Beginner-Friendly and Comprehensive Personalized Federated Learning
Library and Benchmark, JMLR 2025 (arXiv:2312.04992).
"""

import json
from pathlib import Path

import numpy as np
import torch

from flfast.datamodules.examples import Examples, check_num_classes
from flfast.datamodules.number_range import as_float32
from flfast.state.regular_file import read_text, reading
from flfast.zoo.datamodules.sources.numeric_pickle import load_arrays


def pfllib(*, root: str) -> Examples:
    """Examples of a dataset that PFLlib has partitioned and split.

    Inputs [N, ...] are not normalised, since PFLlib has done that; floating-point inputs become
    float32. Training examples come first, then test examples, each grouped by client. `root` has
    `train/`, `test/` and optionally `config.json`, whose `num_classes` replaces the largest label
    + 1. Pickled code in the files does not run.

    Raises:
        ValueError: if files are missing, hold anything but arrays of numbers, or do not fit
            together.
    """
    folder = Path(root).expanduser()
    config = _read_config(folder)
    paths = _client_files(folder, num_clients=config.get("num_clients", 0))
    parts = [_read_client(path, config.get("num_classes")) for path in paths]
    counts = np.array([len(labels) for _, labels in parts])
    _check_same_shape(paths, [inputs for inputs, _ in parts])
    first = next((inputs for inputs, _ in parts if len(inputs)), parts[0][0])
    # Each part is freed once it is copied. Last first, so that the heap can shrink meanwhile.
    inputs = np.empty((counts.sum(), *first.shape[1:]), dtype=first.dtype)
    targets = np.empty(counts.sum(), dtype=np.int64)
    for end in reversed(np.cumsum(counts)):
        part_inputs, part_targets = parts.pop()
        rows = slice(end - len(part_targets), end)
        inputs[rows], targets[rows] = part_inputs, part_targets
    num_clients = len(paths) // 2
    return Examples(
        inputs=torch.from_numpy(inputs),
        targets=torch.from_numpy(targets),
        num_classes=config.get("num_classes")
        or check_num_classes(int(targets.max(initial=0)), len(targets), f"data.root={root}"),
        is_test=np.repeat(np.arange(len(paths)) >= num_clients, counts),
        owner=np.repeat(np.arange(len(paths)) % num_clients, counts),
    )


def _read_config(folder: Path) -> dict[str, int]:
    path = folder / "config.json"
    if not path.is_file():
        return {}
    with reading(f"{path} is not readable JSON", RecursionError):
        content = json.loads(read_text(path))
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object, got {type(content).__name__}")
    config = {key: content[key] for key in ("num_clients", "num_classes") if key in content}
    for key, value in config.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{path} has {key}={value!r}, expected an integer >= 1")
    return config


def _client_files(folder: Path, *, num_clients: int) -> list[Path]:
    """Training files of all clients, in order, followed by their test files."""
    parts = [folder / "train", folder / "test"]
    for part in parts:
        if not part.is_dir():
            raise ValueError(
                f"data.root={folder} has no folder {part.name}/; point it to a PFLlib dataset, "
                "which has train/0.npz, test/0.npz, ..."
            )
    numbers = {int(f.stem) for part in parts for f in part.glob("*.npz") if f.stem.isdecimal()}
    num_clients = max(num_clients, max(numbers, default=0) + 1)
    for client_id in range(num_clients):
        for part in parts:
            if not (part / f"{client_id}.npz").is_file():
                raise ValueError(
                    f"data.root={folder} lacks {part.name}/{client_id}.npz; each of its "
                    f"{num_clients} clients needs train/NUMBER.npz and test/NUMBER.npz, from 0"
                )
    return [part / f"{client_id}.npz" for part in parts for client_id in range(num_clients)]


def _read_client(path: Path, num_classes: int | None) -> tuple[np.ndarray, np.ndarray]:
    inputs, targets = load_arrays(path, entry="data", names=("x", "y"))
    if targets.ndim != 1 or targets.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: y is {targets.dtype} {list(targets.shape)}, expected integer [n]"
        )
    if inputs.ndim < 2 or len(inputs) != len(targets):
        raise ValueError(
            f"{path}: x has shape {list(inputs.shape)}, y {list(targets.shape)}; "
            "expected [n, ...] and [n]"
        )
    low, high = targets.min(initial=0), targets.max(initial=0)
    if low < 0 or high >= (num_classes or np.inf):
        below = f"[0, {num_classes}), as config.json says" if num_classes else ">= 0"
        first = int(np.flatnonzero((targets < 0) | (targets >= (num_classes or np.inf)))[0])
        raise ValueError(
            f"{path}: labels must lie in {below}, got {low} to {high}; the first outside is in "
            f"row {first} (the first is 0)"
        )
    # Floats become float32, as models expect. Integers become uint8 or int64, which torch has.
    integer = inputs.dtype if inputs.dtype == np.uint8 else np.int64
    if inputs.dtype.kind == "f":
        inputs = as_float32(f"{path}: x", inputs)
    else:
        inputs = inputs.astype(integer, copy=False)
    if inputs.size and not np.isfinite([inputs.min(), inputs.max()]).all():
        raise ValueError(f"{path}: x holds NaN or infinity")
    return inputs, targets


def _check_same_shape(paths: list[Path], parts: list[np.ndarray]) -> None:
    nonempty = [(path, part) for path, part in zip(paths, parts, strict=True) if len(part)]
    for path, part in nonempty:
        first_path, first = nonempty[0]
        if (part.shape[1:], part.dtype) != (first.shape[1:], first.dtype):
            raise ValueError(
                f"{path} has inputs {part.dtype} {list(part.shape[1:])}, but {first_path} has "
                f"{first.dtype} {list(first.shape[1:])}; all clients must have the same"
            )
