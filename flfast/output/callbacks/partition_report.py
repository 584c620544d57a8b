"""Writes `partition.json`, `.npz` and `.png`: the examples of every client."""

import json
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_only

from flfast.datamodules.federated import FederatedDataModule
from flfast.federation.loop import Federation
from flfast.output.callbacks.figures import sampled
from flfast.output.callbacks.partition_figure import draw_partition, partition_size
from flfast.output.callbacks.run_picture import RunPicture, or_warn
from flfast.output.results.charts import Look, RowChart
from flfast.output.results.formats import axis
from flfast.state.messages import naming
from flfast.state.options import Count, Formats

_MOST_LISTED = 1000
_COLOURS = {"train": "global", "val": "val", "test": "local"}


class PartitionReport(RunPicture):
    """Writes the numbers at the start of the run and the figure at its end."""

    file_name = "partition.png"

    def __init__(self, *, max_clients: Count, dpi: Count, formats: Formats) -> None:
        super().__init__(dpi=dpi, formats=formats)
        self._max_clients = max_clients

    @rank_zero_only
    def on_run_start(self, federation: Federation) -> None:
        """Write `partition.json`: a summary, and each of the first 1,000 clients.

        With a shift, it says what each of these clients got, and of a graph its neighbours in
        round 1.
        `partition.npz` has the client of each training example, for `partition=from_file`.
        """
        data = federation.data
        listed = np.arange(min(data.num_clients, _MOST_LISTED))
        sizes = split_sizes(data)
        counts = label_counts(data, listed)
        near = None if federation.topology is None else federation.topology.neighbours()
        clients = [
            {
                "client_id": client_id,
                **({"name": data.client_names[client_id]} if data.client_names else {}),
                **{name: int(size[client_id]) for name, size in sizes.items()},
                "labels": counts[client_id].tolist(),
                **({"shift": drawn_by(data, client_id)} if data.shift.changes else {}),
                **({} if near is None else {"neighbours": near[client_id]}),
            }
            for client_id in listed.tolist()
        ]
        path = federation.run_dir / "partition.json"
        with naming(path):
            path.write_text(_json(_summary(data, sizes), clients), encoding="utf-8")
        path = federation.run_dir / "partition.npz"
        with naming(path):
            owner = data.owner.astype(np.min_scalar_type(data.num_clients))
            np.savez_compressed(path, owner=owner, digest=np.array(data.digest))

    @rank_zero_only
    @or_warn
    def on_run_end(self, federation: Federation) -> None:
        """Draw `partition.png`: classes and sizes of clients."""
        data = federation.data
        shown, title = sampled(data.num_clients, self._max_clients, federation.title)
        counts = label_counts(data, shown)
        if len(shown) < data.num_clients and counts.size:
            # In a sample, the order of ids means nothing: group clients by their main class.
            order = np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))
            shown, counts = shown[order], counts[order]
            title += ", sorted by main class"
        names = data.client_names
        sizes = {name: size[shown] for name, size in split_sizes(data).items()}
        sizes = {name: size for name, size in sizes.items() if size.any()}
        chart = RowChart(
            "Size",
            "examples",
            [names[k] if names else str(k) for k in shown.tolist()],
            "client",
            [Look(name, _COLOURS[name]) for name in sizes],
            axis,
        ).stacked(np.stack([*sizes.values()], axis=1).tolist())
        classes = class_names(data) or [str(label) for label in range(counts.shape[1])]
        with self.picture(federation, size=partition_size(len(shown)), title=title) as picture:
            draw_partition(picture, chart, classes, counts)


def split_sizes(data: FederatedDataModule) -> dict[str, np.ndarray]:
    """Examples of every client in each split, int64 [K]."""
    return {name: np.diff(data.splits[name].offsets) for name in ("train", "val", "test")}


def num_labels(data: FederatedDataModule) -> int:
    """Different labels that partitions see; 0 if the examples have none."""
    labels = data.examples.classes
    if labels is None or data.examples.labels is None:
        return 0 if labels is None else data.num_classes
    return int(labels.max()) + 1


def class_names(data: FederatedDataModule) -> list[str]:
    """Names of what `num_labels` counts; empty if the data name none."""
    names = data.examples.class_names
    return [*names] if len(names) == num_labels(data) else []


def label_counts(data: FederatedDataModule, client_ids: np.ndarray) -> np.ndarray:
    """Examples of each class over all splits, for M clients, int64 [M, C].

    C is 0 if the examples have no labels. The cost grows with the examples of these clients, not
    with the population.
    """
    targets, num_classes = data.examples.classes, num_labels(data)
    counts = np.zeros((len(client_ids), num_classes), dtype=np.int64)
    if targets is None:
        return counts
    for split in data.splits.values():
        starts = split.offsets[client_ids]
        lengths = split.offsets[client_ids + 1] - starts
        row = np.repeat(np.arange(len(client_ids)), lengths)
        within = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        labels = targets[split.indices[np.repeat(starts, lengths) + within]]
        cells = np.bincount(row * num_classes + labels, minlength=counts.size)
        counts += cells.reshape(counts.shape)
    return counts


def drawn_by(data: FederatedDataModule, client_id: int) -> dict[str, Any]:
    """What a client got from the shift, by name, such as its cluster."""
    return {name: values[client_id].tolist() for name, values in data.drawn.items()}


def _summary(data: FederatedDataModule, sizes: dict[str, np.ndarray]) -> dict[str, Any]:
    examples = np.sum(list(sizes.values()), axis=0)
    return {
        "num_clients": data.num_clients,
        "num_classes": num_labels(data),
        **({"class_names": names} if (names := class_names(data)) else {}),
        "num_examples": int(examples.sum()),
        **{f"num_{name}": int(size.sum()) for name, size in sizes.items()},
        "num_central_test": len(data.central_test),
        **({"shift": data.shift.name} if data.shift.changes else {}),
        "client_size": {
            "min": int(examples.min()),
            "median": float(np.median(examples)),
            "max": int(examples.max()),
        },
    }


def _json(summary: dict[str, Any], clients: list[dict[str, Any]]) -> str:
    # One line per client: json.dumps(indent=2) would put every count on a line of its own.
    lines = ",\n".join(f"    {json.dumps(client)}" for client in clients)
    head = json.dumps(summary, indent=2).removesuffix("\n}")
    return f'{head},\n  "clients": [\n{lines}\n  ]\n}}\n'
