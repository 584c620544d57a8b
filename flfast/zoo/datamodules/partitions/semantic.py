"""Feature skew: every client has examples that look alike, of all classes.

Yuan, Morningstar, Ning, Singhal, "What Do We Mean by Generalization in Federated Learning?", ICLR
2022, arXiv:2110.14216, semantic partitioning. Each class is clustered into one group per client.
Groups of different classes are then matched, one class after the other, so that the groups of a
client resemble each other. They embed images by a pretrained network, fit Gaussian mixtures, and
match by KL divergence. Here the embedding is PCA of the inputs, which needs no download. k-means
makes the groups, and they are matched by the distance of centres, each relative to its class.
"""

import warnings

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from flfast.datamodules.partitions.counts import (
    assign,
    check_enough,
    class_ids,
    raise_to_minimum,
)
from flfast.state.options import Count

_MOST_STEPS = 100
"""Iterations of k-means at most; later ones hardly change the groups."""
_MOST_FITTED = 20_000
"""Examples that principal components are computed from."""


def semantic(
    labels: np.ndarray,
    *,
    num_clients: Count,
    components: Count,
    min_samples: Count,
    inputs: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Owner of every example, int64 [N]; each client has one group of similar examples.

    A class with fewer examples than clients has one group per example. The largest clients give to
    those with fewer than `min_samples`.
    """
    check_enough(len(labels), num_clients=num_clients, min_samples=min_samples)
    classes = class_ids(labels)
    num_classes = int(classes.max()) + 1
    owner = np.empty(len(labels), dtype=np.int64)
    with threadpool_limits(1):  # sums would depend on the number of cores
        features = _principal(inputs, components, rng)
        style = np.zeros((num_clients, features.shape[1]))  # [K, F]: each client's latest group
        for label in rng.permutation(num_classes).tolist():
            members = np.flatnonzero(classes == label)
            own = features[members] - features[members].mean(axis=0)
            group, centres = _groups(own, num_clients, rng)
            chosen, client = linear_sum_assignment(cdist(centres, style, "sqeuclidean"))
            owner[members] = client[np.argsort(chosen)][group]
            style[client] = centres[chosen]
    owner = rng.permutation(num_clients)[owner]
    counts = np.zeros((num_clients, num_classes), dtype=np.int64)
    np.add.at(counts, (owner, classes), 1)
    return reassign(owner, classes, raise_to_minimum(counts, min_samples), rng)


def reassign(
    owner: np.ndarray, classes: np.ndarray, counts: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Owners with the given counts, int64 [N]: as few examples as possible change their client.

    Column c of the counts, int64 [K, C], sums to the number of examples of class c.
    """
    num_classes = counts.shape[1]
    order = rng.permutation(len(owner))
    cell = owner[order] * num_classes + classes[order]
    order = order[np.argsort(cell, kind="stable")]  # by client and class, shuffled within
    cell = np.sort(cell)
    place = np.arange(len(cell)) - np.searchsorted(cell, cell)
    moving = order[place >= counts.ravel()[cell]]
    before = np.bincount(cell, minlength=counts.size).reshape(counts.shape)
    changed = owner.copy()
    changed[moving] = assign(classes[moving], np.maximum(counts - before, 0), rng)
    return changed


def _principal(inputs: np.ndarray, components: int, rng: np.random.Generator) -> np.ndarray:
    """Principal components of inputs, [N, F]; the inputs if F would be no fewer."""
    from sklearn.decomposition import PCA  # half a second

    fitted = inputs
    if len(inputs) > _MOST_FITTED:
        fitted = inputs[np.sort(rng.choice(len(inputs), _MOST_FITTED, replace=False))]
    if components >= min(fitted.shape):
        return inputs
    seed = int(rng.integers(2**31))
    with np.errstate(invalid="ignore"):  # inputs that are all equal explain none of no variance
        pca = PCA(components, svd_solver="randomized", random_state=seed).fit(fitted)
    found: np.ndarray = pca.transform(inputs)
    return found


def _groups(
    features: np.ndarray, num_groups: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Group of each example, int [M], and the groups' centres, [at most num_groups, F]."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    num, seed = min(num_groups, len(features)), int(rng.integers(2**31))
    k_means = KMeans(num, n_init=1, max_iter=_MOST_STEPS, random_state=seed)
    with warnings.catch_warnings():
        # Examples that are equal to each other leave groups empty, which is no problem here.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return k_means.fit_predict(features), k_means.cluster_centers_
