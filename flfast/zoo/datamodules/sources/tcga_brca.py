"""Fed-TCGA-BRCA: survival of 1,088 breast cancer patients of six regions, from 39 features.

Ogier du Terrail et al.: FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in
Realistic Healthcare Settings. NeurIPS Datasets and Benchmarks 2022. https://arxiv.org/abs/2210.04620
"""

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.number_range import as_float32
from flfast.datamodules.preprocessing import Preprocessing
from flfast.datamodules.sources.table_columns import Fit, RowClients, fit_columns, table_inputs
from flfast.datamodules.sources.table_files import Columns, read_table

_FILES = {
    "brca.csv": ["pid", "E", "T"],
    "centers.csv": ["TSS Code", "Region"],
    "train_test_split.csv": ["pid", "fold2"],
}
"""Files of the authors' repository, and the columns that they must have."""


def tcga_brca(
    *,
    root: str,
    standardise: Literal["none", "all", "client"],
    kept: Preprocessing | None = None,
) -> Examples:
    """Inputs float32 [N, 39], in the order of `brca.csv`; targets are days and deaths [N, 2].

    A client is the region of the patients' hospitals. The test examples are those of the
    authors' folds; patients without a fold are left out. The number of a client is the authors'.
    `root` has `brca.csv`, `centers.csv` and `train_test_split.csv`. Inputs are standardised by the
    mean and deviation of training examples: of none, of all clients, or of each client's own.

    Raises:
        ValueError: if a file or a column is missing, or a patient has no region.
    """
    patients, centers, folds = (_read(Path(root).expanduser() / name) for name in _FILES)
    fold = dict(zip(folds.values("pid"), map(str, folds.values("fold2")), strict=True))
    region = dict(zip(centers.values("TSS Code"), centers.values("Region"), strict=True))
    pids = [pid for pid in patients.values("pid") if pid in fold]
    chosen = patients.kept(np.array([pid in fold for pid in patients.values("pid")]))
    is_test, owner, names = [], [], dict[int, str]()
    for pid in pids:
        part, _, number = fold[pid].partition("_")
        center = str(pid).split("-")[1:2]
        if part not in {"train", "test"} or not number.isdecimal() or not {*center} & {*region}:
            raise ValueError(
                f"data.root={root}: patient {pid} is of fold {fold[pid]!r} and center "
                f"{''.join(center)!r}; allowed: train_CLIENT or test_CLIENT, and a TSS Code of "
                "centers.csv"
            )
        is_test.append(part == "test")
        owner.append(int(number))
        names.setdefault(int(number), region[center[0]])
    inputs = chosen.free(_FILES["brca.csv"])
    held_out, group = np.array(is_test), np.array(owner)
    clients = None
    if standardise == "client":
        clients = RowClients(group, [names.get(k, str(k)) for k in range(max(names) + 1)])
    fit = Fit(~held_out, standardise != "none", clients)
    columns = (kept.columns if kept else None) or fit_columns(chosen, inputs, [], fit)
    targets = np.stack([chosen.numbers("T"), chosen.numbers("E")], axis=1)
    return Examples(
        inputs=torch.from_numpy(table_inputs(chosen, columns, clients)),
        targets=torch.from_numpy(as_float32(f"data.root={root}", targets)),
        num_classes=1,
        is_test=held_out,
        owner=group,
        task="survival",
        input_names=tuple(inputs),
        columns=columns,
        client_names=tuple(names[number] for number in sorted(names)),
    )


def _read(path: Path) -> Columns:
    columns = Columns(read_table(str(path), names=_FILES[path.name], key="data.root"), str(path))
    for name in _FILES[path.name]:
        if name not in columns.names:
            raise ValueError(
                f"{path} has no column {name!r}; it has {', '.join(columns.names[:5])}, ..."
            )
    return columns
