"""HeteroFL: clients train slices of a model; each element is averaged over those that have it.

Diao, Ding, Tarokh: HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients. ICLR 2021, Algorithm 1. https://arxiv.org/abs/2010.01264

    w_k = the leading units of each layer of w[t], as many as model k has
    h_k = F_k with logits of classes that client k does not have set to 0   (masked cross-entropy)
    w[t+1] = w[t] + sum_k change_k / number of clients k that have the element

Slices are members of `model=family` of one option, the widest first; `model=heterofl_cnn` has
their Scaler. Their static BatchNorm is `bn=recalibrate`. With `masked`, as in the authors' code, a
client has only the rows of its own classes in the last layer, which the server is told, and its
own predictions leave out other classes.
"""

from collections.abc import Sequence

from flfast.algorithms.contract import Algorithm
from flfast.algorithms.kit.slices import averaged_slices, with_masked_classes
from flfast.state.tree import Tree


def heterofl(*, masked: bool, initial: Tree, members: Sequence[Tree]) -> Algorithm:
    """Averaged slices of a model; all clients weigh the same."""
    algorithm = averaged_slices("heterofl", initial, members)
    return with_masked_classes(algorithm, initial) if masked else algorithm
