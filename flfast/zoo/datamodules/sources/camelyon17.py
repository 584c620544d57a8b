"""Camelyon17 of WILDS: tumours in patches of lymph nodes from five hospitals.

Bandi et al. 2018; Koh et al., WILDS: A Benchmark of in-the-Wild Distribution Shifts, 2021
(arXiv:2012.07421).
"""

import csv
from pathlib import Path

import numpy as np
import torch

from flfast.datamodules.examples import Examples, check_targets
from flfast.datamodules.sources.decoded_images import load_images
from flfast.datamodules.transforms import image_transform
from flfast.datamodules.value_names import number_clients
from flfast.state.options import Count, NonNegativeInt, Positive
from flfast.state.regular_file import reading, require_file

_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")


def camelyon17(  # noqa: PLR0913 - one parameter an option
    *,
    root: str,
    test_centers: list[NonNegativeInt],
    image_size: Count | None,
    in_memory: bool,
    cache: str | None,
    mean: list[float],
    std: list[Positive],
    random_crop: NonNegativeInt,
    random_flip: bool,
) -> Examples:
    """455,954 colour images [N, 3, 96, 96]; 1 is a tumour. Hospitals are the natural clients.

    Images of test centres are the central test set. Without any, images with `split` 1 are test
    examples of their own hospital. Decoded images take 12.6 GB.

    Raises:
        ValueError: if files are missing or broken, or there is no such hospital.
    """
    transform = image_transform(
        mean=mean, std=std, channels=3, random_crop=random_crop, random_flip=random_flip
    )
    folder = Path(root).expanduser()
    rows, numbers = _read_table(folder / "metadata.csv", root)
    tumor, center, split = numbers.T
    check_targets(f"{folder / 'metadata.csv'}: tumor", tumor, "classification", 2)
    if unknown := sorted(set(test_centers) - set(center.tolist())):
        known = ", ".join(map(str, sorted(set(center.tolist()))))
        raise ValueError(f"data.test_centers={list(test_centers)}; allowed: of {known}: {unknown}")
    is_test = np.isin(center, test_centers) if test_centers else split == 1
    paths = [str(folder / _patch(row)) for row in rows]
    inputs = load_images(
        paths, channels=3, image_size=image_size, in_memory=in_memory, cache=cache
    )
    clients = number_clients(center, is_test, where=f"data.root={root}: center")
    return Examples(
        inputs=inputs,
        targets=torch.from_numpy(tumor),
        num_classes=2,
        transform=transform,
        is_test=is_test,
        owner=clients.owner,
        client_names=clients.names,
    )


def _read_table(path: Path, root: str) -> tuple[list[dict[str, str]], np.ndarray]:
    """Rows of metadata.csv, and int64 [N, 3]: tumor, center, split."""
    wanted = "metadata.csv beside patches/, as WILDS has it in camelyon17_v1.0/"
    with reading(f"data.root={root} has no readable {wanted}", csv.Error):
        require_file(path)
        with path.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file, strict=True)
            missing = [name for name in _COLUMNS if name not in (table.fieldnames or [])]
            rows = [] if missing else list(table)
    if missing or not rows:
        raise ValueError(f"{path} lacks {', '.join(missing) or 'rows'}")
    with reading(f"{path}: tumor, center and split must be integers", TypeError):
        names = ("tumor", "center", "split")
        return rows, np.array([[int(row[name]) for name in names] for row in rows])


def _patch(row: dict[str, str]) -> str:
    where = f"patient_{row['patient'].zfill(3)}_node_{row['node']}"
    return f"patches/{where}/patch_{where}_x_{row['x_coord']}_y_{row['y_coord']}.png"
