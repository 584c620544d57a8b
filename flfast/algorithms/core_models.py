"""Models combined with learned weights from the core models of all clients.

The download holds the others' `models`, each leaf [N, ...], and `own`, the client's place as one
of N.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from flfast.algorithms.records import Records
from flfast.state.tree import Tree, float_type, tree_map

RELATIONS = "apple/relations"
"""Name of the learned weights [N]; no module can have it."""


def core_models(records: Records, clients: Sequence[int], num_clients: int) -> Tree:
    """The download of K clients. Its models are views of one copy."""
    models, shape = records[range(num_clients)]["params"], (len(clients), num_clients)
    return {
        "own": F.one_hot(torch.tensor(clients), num_clients).to(float_type(models)),
        "models": tree_map(lambda leaf: leaf.expand(*shape, *leaf.shape[1:]), models),
    }


def combined(params: Tree, relations: Tensor, download: Tree) -> Tree:
    """Parameters, with the sum of the core models by their weights, the client's own included.

    Args:
        params: with the client's own core model.
        relations: weights [N].
        download: see above.
    """
    own = download["own"].to(relations)
    others, mine = relations * (1 - own), (relations * own).sum()
    models: Tree = download["models"]
    sums = {n: torch.tensordot(others.to(m), m, 1) + mine * params[n] for n, m in models.items()}
    return {**params, **sums}


def own_core(download: Tree) -> Tree:
    """The core model that the server has of the client."""
    own, models = download["own"], download["models"]
    return {"params": tree_map(lambda leaf: torch.tensordot(own.to(leaf), leaf, 1), models)}


def combination(download: Tree, client: Tree) -> Tree:
    """The combination that a client keeps: its `own` core model and its weights `p`."""
    own: Tree = client["own"]
    return {**own, "params": combined(own["params"], client["p"], download)}
