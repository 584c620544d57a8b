"""LEAF's JSON folders: `train/*.json` and `test/*.json`, each with the examples of many users.

Caldas et al., LEAF: A Benchmark for Federated Settings, 2018 (arXiv:1812.01097).
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from flfast.datamodules.value_names import number_clients
from flfast.state.regular_file import read_text, reading


class LeafUser(NamedTuple):
    """Examples of one user in one file. A user may be in several files.

    Attributes:
        x: inputs, n of them; their form depends on the dataset.
        y: targets, n of them.
        is_test: whether the file lies in `test/`.
    """

    name: str
    x: list[Any]
    y: list[Any]
    is_test: bool
    path: Path


def leaf_users(root: str) -> Iterator[LeafUser]:
    """All users with at least one example: those of `train/`, then those of `test/`, if any.

    LEAF's `preprocess.sh` leaves these folders in `root`. Only one file is in memory at a time, so
    a caller should convert each user's lists at once. Files are read in the order of their names,
    users in the order of the file.

    Raises:
        ValueError: if folders or files are missing, or a file has another form.
    """
    folder = Path(root).expanduser()
    if not any((folder / "train").glob("*.json")):
        raise ValueError(
            f"data.root={root} has no train/*.json; point it to the folder data/ of a dataset "
            "that LEAF has preprocessed, which has train/*.json and test/*.json"
        )
    for part in ("train", "test"):
        for path in sorted((folder / part).glob("*.json")):
            for name, x, y in _users_of(path):
                yield LeafUser(name, x, y, part == "test", path)


def _users_of(path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    with reading(f"{path} is not readable JSON", RecursionError):
        content = json.loads(read_text(path))
    data = content.get("user_data") if isinstance(content, dict) else None
    names = content.get("users") if isinstance(content, dict) else None
    if not isinstance(data, dict) or not isinstance(names, list):
        raise ValueError(f"{path} is not a file of LEAF: it lacks a list users or a user_data")
    for name in names:
        user = data.get(name) if isinstance(name, str) else None
        x, y = (user.get("x"), user.get("y")) if isinstance(user, dict) else (None, None)
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            raise ValueError(f"{path}: user {name!r} lacks lists x and y of equal length")
        if x:
            yield name, x, y


def read_users(
    root: str, read: Callable[[LeafUser], tuple[Any, np.ndarray]], *, lack: str
) -> tuple[list[Any], dict[str, Any]]:
    """Inputs that `read` returns of each user, and of all examples other fields of `Examples`.

    `read` returns inputs and targets; users without any are left out.

    Raises:
        ValueError: if nobody has examples, which `lack` says; or as `leaf_users`.
    """
    inputs, targets, names, tests = [], [], [], []
    for user in leaf_users(root):
        x, y = read(user)
        if len(y):
            inputs.append(x)
            targets.append(y)
            names.append(user.name)
            tests.append(user.is_test)
    if not inputs:
        raise ValueError(f"data.root={root}{lack}")
    counts = [len(part) for part in targets]
    clients = number_clients(names, np.array(tests), where=f"data.root={root}: users")
    return inputs, {
        "targets": torch.from_numpy(np.concatenate(targets)),
        "is_test": np.repeat(np.array(tests), counts),
        "owner": np.repeat(clients.owner, counts),
        "client_names": clients.client_names,
    }
