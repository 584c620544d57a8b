"""Camelyon17 of WILDS: tumours in patches of lymph nodes from five hospitals.

Bandi et al. 2018; Koh et al., WILDS: A Benchmark of in-the-Wild Distribution Shifts, 2021
(arXiv:2012.07421).
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from flfast.datamodules.examples import Examples, check_targets
from flfast.datamodules.sources.source import ImageSource
from flfast.datamodules.value_names import number_clients
from flfast.state.options import NonNegativeInt
from flfast.state.regular_file import reading, require_file

_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")


@dataclass(frozen=True, kw_only=True)
class Camelyon17(ImageSource):
    """455,954 colour images [N, 3, 96, 96]; 1 is a tumour. Hospitals are the natural clients.

    Images of test centres are the central test set. Without any, images with `split` 1 are test
    examples of their own hospital. Decoded images take 12.6 GB.
    """

    root: str
    test_centers: list[NonNegativeInt]

    def load(self) -> Examples:
        """All images, in the order of the table."""
        folder, centers = Path(self.root).expanduser(), self.test_centers
        rows, numbers = _read_table(folder / "metadata.csv", self.root)
        tumor, center, split = numbers.T
        check_targets(f"{folder / 'metadata.csv'}: tumor", tumor, "classification", 2)
        if unknown := sorted(set(centers) - set(center.tolist())):
            known = ", ".join(map(str, sorted(set(center.tolist()))))
            raise ValueError(f"data.test_centers={list(centers)}; allowed: of {known}: {unknown}")
        is_test = np.isin(center, centers) if centers else split == 1
        clients = number_clients(center, is_test, where=f"data.root={self.root}: center")
        return Examples(
            **self.read_images([folder / _patch(row) for row in rows], channels=3),
            **clients._asdict(),
            targets=torch.from_numpy(tumor),
            num_classes=2,
            is_test=is_test,
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
