"""FedRolex: clients train slices of the model whose windows roll on from round to round.

Alam, Liu, Yan, Zhang: FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
Extraction. NeurIPS 2022, section 3.2. https://arxiv.org/abs/2212.01548

    w_k = units {j, j + 1, ..., j + D_k - 1} mod D of each layer, j = t mod D,   D_k of D units
    w[t+1] as with HeteroFL

t counts from 0. Each unit is trained equally often, also those that only wide models have in
HeteroFL. The authors' code lets windows roll the other way, and can weigh clients by width or by
how often an element was averaged before; here all weigh the same. See `heterofl` for the rest.
"""

from collections.abc import Sequence

from flfast.algorithms.contract import Algorithm
from flfast.algorithms.kit.slices import averaged_slices, with_masked_classes
from flfast.state.tree import Tree


def fedrolex(*, masked: bool, initial: Tree, members: Sequence[Tree]) -> Algorithm:
    """Averaged slices of a model with rolling windows; all clients weigh the same."""
    algorithm = averaged_slices("fedrolex", initial, members, rolls=True)
    return with_masked_classes(algorithm, initial) if masked else algorithm
