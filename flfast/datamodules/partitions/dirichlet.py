"""Dirichlet label skew, per class or per client.

Per class (`balanced=false`): Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni, "Bayesian
Nonparametric Federated Learning of Neural Networks", ICML 2019, section 4; Li, Diao, Chen, He,
"Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022, p_k ~ Dir(beta).
They repeat the draw until no client is too small. Here the largest clients give to small ones.

Per client (`balanced=true`): Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification", 2019, arXiv:1909.06335, q ~ Dir(alpha * p).
Their alpha is C times ours: so, our alpha has the same meaning with both settings.
"""

import numpy as np
from scipy.special import softmax

from flfast.datamodules.partitions.counts import (
    assign,
    check_enough,
    class_ids,
    even_counts,
    largest_remainder,
    raise_to_minimum,
)
from flfast.state.options import Count, Positive

# Beyond these bounds a draw is one-hot or uniform to six digits, and floats would overflow.
_SMALLEST, _LARGEST = 1e-12, 1e12


def dirichlet(
    labels: np.ndarray,
    *,
    num_clients: Count,
    alpha: Positive,
    min_samples: Count,
    balanced: bool,
    rng: np.random.Generator,
) -> np.ndarray:
    """Owner of every example, int64 [N]; the smaller alpha, the stronger the label skew.

    Balanced draws the class shares of each client, and towards alpha 0 a client has one class.
    Otherwise the client shares of each class are drawn, client sizes follow, and towards alpha 0 a
    class belongs to one client.
    """
    check_enough(len(labels), num_clients=num_clients, min_samples=min_samples)
    classes = class_ids(labels)
    class_sizes = np.bincount(classes)
    if balanced:
        sizes = even_counts(len(labels), num_clients)
        counts = counts_of_clients(class_sizes, sizes, alpha, rng)
        # The last clients had the least choice. Permuted, so that this does not depend on the id.
        return assign(classes, rng.permutation(counts), rng)
    logits = dirichlet_logits(np.full((len(class_sizes), num_clients), alpha), rng)
    counts = largest_remainder(softmax(logits, axis=1), class_sizes).T  # [K, C]
    return assign(classes, raise_to_minimum(counts, min_samples), rng)


def counts_of_clients(
    class_sizes: np.ndarray, client_sizes: np.ndarray, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Counts int64 [K, C] with the given sums: clients draw from a pool without replacement.

    Each iteration of the inner loop completes a client or exhausts a class. There are therefore at
    most K + C iterations. The last clients have the least choice. Class sizes int64 [C] are > 0,
    and have the same sum as client sizes int64 [K].
    """
    pool = class_sizes.copy()
    prior = class_sizes * (len(pool) / class_sizes.sum())  # [C], mean 1
    logits = dirichlet_logits(np.tile(alpha * prior, (len(client_sizes), 1)), rng)  # [K, C]
    counts = np.zeros((len(client_sizes), len(pool)), dtype=np.int64)
    for client, size in enumerate(client_sizes):
        while missing := size - counts[client].sum():
            shares = softmax(np.where(pool > 0, logits[client], -np.inf))
            taken = np.minimum(largest_remainder(shares[None], np.array([missing]))[0], pool)
            counts[client] += taken
            pool -= taken
    return counts


def dirichlet_logits(concentration: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Logits whose softmax over the last axis is a Dirichlet draw; same shape.

    Uses Gamma(a) = Gamma(a + 1) * U^(1 / a) in log space. For a small `a`, all gamma variates
    underflow to 0, but their logarithms still have an order. Concentrations [..., D] are > 0.
    """
    bounded = np.clip(concentration, _SMALLEST, _LARGEST)
    return (
        np.log(rng.standard_gamma(bounded + 1)) - rng.standard_exponential(bounded.shape) / bounded
    )
