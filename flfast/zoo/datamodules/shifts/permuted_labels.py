"""Classes have other names in each cluster of clients: the same input, another label.

Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints. 2019: clusters of clients whose labels are permuted.
https://arxiv.org/abs/1910.01991
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.shifts.client_draws import Assignment, clusters
from flfast.datamodules.shifts.shift import Affected, Drawn, Facts, Shift, When
from flfast.state.options import Count, Several
from flfast.state.randomness import generator
from flfast.zoo.datamodules.shifts.strengths import need_classes


def permuted_labels(
    *, groups: Count, classes: Several | None, assignment: Assignment, at: When
) -> Shift:
    """Labels after a permutation of the cluster's own; the first cluster keeps them."""

    def draw(clients: np.ndarray, facts: Facts) -> Drawn:
        cluster = clusters(clients, groups, assignment, seed=facts.seed)
        num = facts.num_classes
        # Clusters beyond the last client are nobody's.
        small = np.min_scalar_type(num)  # a row for each of perhaps a million clients
        labels = np.tile(np.arange(num, dtype=small), (int(cluster.max()) + 1, 1))
        for group in np.unique(cluster).tolist():
            labels[group] = permutation(group, num, classes or num, seed=facts.seed)
        return {"cluster": cluster, "new_labels": labels[cluster]}

    check = partial(_check, classes)
    return Shift("permuted_labels", at=at, draw=draw, targets=_permute, check=check)


def permutation(group: int, num_classes: int, moved: int, *, seed: int) -> np.ndarray:
    """New label of every class in a cluster, int64 [C]; no moved class keeps its label.

    Cluster 0 keeps all labels. Elsewhere `moved` classes change, at least 2.
    """
    labels = np.arange(num_classes)
    if group:
        ring = generator(seed, "shift labels", group).permutation(num_classes)[:moved]
        labels[ring] = np.roll(ring, 1)
    return labels


def _check(moved: int | None, examples: Examples) -> None:
    need_classes("permuted_labels", examples)
    if moved is not None and moved > examples.num_classes:
        raise ValueError(
            f"shift.classes={moved} with {examples.num_classes} classes; allowed: 2 to "
            f"{examples.num_classes}, or null for all"
        )


def _permute(targets: Tensor, affected: Affected) -> Tensor:
    new = affected.drawn["new_labels"]  # [M, C]
    return torch.from_numpy(new[np.arange(len(new)), targets.numpy()].astype(np.int64))
