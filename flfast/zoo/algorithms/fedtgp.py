"""FedTGP: the server trains global prototypes, by a margin nearest to the clients' class means.

Zhang, Liu, Hua, Cao: FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive
Learning for Data and Model Heterogeneity in Federated Learning. AAAI 2024.
https://arxiv.org/abs/2401.03230

    F_k(w) + lam * mean_i |z_i - P[y_i]|^2 / D,   z = features before the head, [D]
    P := SGD on mean_kc CE(-|p_kc - P[j]| - margin * 1[j = c], c),   P[j] = MLP(e_j)
    margin = min(tau, max_c min_{j != c} |q_c - q_j|),   q_c = mean_k p_kc

p_kc is the mean of client k's z of class c, of its final model; q_c counts clients alike. There is
no P in round 1. Later there is one for all classes, also for those without p_kc. A client predicts
the class of the nearest P[j], and with its head before there are any. All but the last is as in
the authors' code. The gradient of a distance is 0 where it is 0; the code's may be NaN there.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flfast.algorithms.contract import Algorithm, Uploads
from flfast.algorithms.kit.keep_local import keep_local
from flfast.algorithms.kit.last_layer import linear_head
from flfast.algorithms.kit.own_module import OwnModule
from flfast.state.options import Count, NonNegative, Positive
from flfast.state.randomness import torch_generator
from flfast.state.tree import Tree
from flfast.zoo.algorithms.kit.class_means import MEANS, means_alone
from flfast.zoo.algorithms.kit.descent import batches, descended
from flfast.zoo.algorithms.kit.prototypes import pulled_to_prototypes


def fedtgp(  # noqa: PLR0913 - one parameter an option
    *,
    lam: NonNegative,
    tau: NonNegative,
    hidden_dim: Count | None,
    server_epochs: Count,
    server_batch_size: Count,
    server_lr: Positive,
    head: list[str] | None,
    initial: Tree,
    seed: int,
) -> Algorithm:
    """FedProto whose prototypes the server trains; see the YAML for the options."""
    top = linear_head(initial, head)
    like = torch.zeros_like(initial["params"][top.names[0]])
    size, hidden = like.shape[1], hidden_dim or like.shape[1]
    shared = {"prototypes": like, "known": like.new_zeros(())}
    rng = torch_generator(seed, "initial embedding")
    embedding = torch.randn(like.shape, generator=rng, dtype=torch.float32).to(like)
    network = OwnModule(
        "prototypes",
        lambda: nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, size)),
        initial,
        seed=seed,
    )

    trained = {"embedding": embedding, **network.initial["params"]}

    def server_step(server: Tree, uploads: Uploads) -> Tree:
        means, present = uploads.rows["means"], uploads.rows["classes"] > 0
        points, labels, by = means[present], present.nonzero()[:, 1], margin(means, present, tau)

        def loss(params: Tree, at: Tensor) -> Tensor:
            far = distances(points[at], network(params, params["embedding"]))
            classes = F.one_hot(labels[at], far.shape[1])
            return F.cross_entropy(-far - by * classes, labels[at])

        rng = torch_generator(seed, "prototypes", uploads.round)
        steps = batches(len(labels), server_batch_size, server_epochs, rng)
        trained = descended(server["trained"], loss, steps, lr=server_lr)
        found = network(trained, trained["embedding"])
        return {**server, "trained": trained, "prototypes": found, "known": like.new_ones(())}

    pulled = pulled_to_prototypes("fedtgp", top, shared, known="known", lam=lam)
    federated = replace(
        pulled,
        server_state=lambda weights: {**pulled.server_state(weights), "trained": trained},
        finish=means_alone(like.dtype),
        parts=MEANS,
        server_step=server_step,
    )
    return keep_local(federated, initial)


def margin(means: Tensor, present: Tensor, tau: float) -> Tensor:
    """The largest of the distances to the nearest other class, at most tau; tau for one class [].

    Args:
        means: class means of the clients [K, C, D].
        present: whether a client has the class, bool [K, C].
        tau: the largest margin.

    >>> points = torch.tensor([[[0.0], [3.0], [4.0], [9.0]]])
    >>> margin(points, torch.tensor([[True, True, True, False]]), 100.0)
    tensor(3.)
    """
    counts = present.sum(0)
    known = counts > 0
    q = (means * present.unsqueeze(2)).sum(0) / counts.clamp(min=1).unsqueeze(1)
    others = known & ~torch.eye(len(known), dtype=torch.bool)
    gaps = torch.where(others, distances(q, q), torch.inf).amin(1)
    return torch.where(known, gaps, 0).amax().clamp(max=tau)


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances [M, N] of points [M, D] and [N, D], with gradient 0 where they are 0."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
