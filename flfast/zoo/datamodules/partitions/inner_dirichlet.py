"""Label skew for given client sizes: every client draws its own class shares.

Acar, Zhao, Navarro, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic
Regularization", ICLR 2021: class shares of a client ~ Dir(alpha), log-normal sizes if unbalanced.
FedLab calls this unbalanced Dirichlet, flwr-datasets the inner Dirichlet partitioner. They draw
one example at a time. Here a client takes all of its examples at once, of what classes have left.
Its shares are drawn around those of all examples, as in `dirichlet` with `balanced=true`.
"""

import numpy as np

from flfast.datamodules.partitions.counts import assign, class_ids
from flfast.datamodules.partitions.dirichlet import counts_of_clients
from flfast.state.options import Count, Positive, Spread
from flfast.zoo.datamodules.partitions.sizes import Sizes, client_sizes


def inner_dirichlet(  # noqa: PLR0913 - one parameter an option
    labels: np.ndarray,
    *,
    num_clients: Count,
    alpha: Positive,
    sizes: Sizes,
    sigma: Spread,
    min_samples: Count,
    within_owners: bool,
    owner: np.ndarray | None,
    rng: np.random.Generator,
) -> np.ndarray:
    """Owner of every example, int64 [N]; the smaller alpha, the stronger the label skew.

    Towards alpha 0, a client has one class. The largest clients give to those with fewer than
    `min_samples`. Within owners, each owner's examples are divided among `num_clients` clients;
    those of the first one are clients 0 to K - 1.

    Raises:
        ValueError: if there are too few examples, numbers for other than K clients, or no owners.
    """
    classes = class_ids(labels)

    def divide(members: np.ndarray) -> np.ndarray:
        """Client of each member, int64 in [0, K)."""
        counts = client_sizes(
            len(members),
            num_clients=num_clients,
            sizes=sizes,
            sigma=sigma,
            min_samples=min_samples,
            rng=rng,
        )
        present = class_ids(classes[members])
        # The last clients have the least choice. A random order, so that it is not up to the id.
        order = rng.permutation(num_clients)
        table = np.empty((num_clients, present.max() + 1), dtype=np.int64)
        table[order] = counts_of_clients(np.bincount(present), counts[order], alpha, rng)
        return assign(present, table, rng)

    if not within_owners:
        return divide(np.arange(len(labels)))
    if owner is None:
        raise ValueError(
            "partition.within_owners=True needs data that names its clients, such as data=pfllib "
            "or data=synthetic; allowed: False"
        )
    found = np.empty(len(labels), dtype=np.int64)
    for number, name in enumerate(np.unique(owner).tolist()):
        members = np.flatnonzero(owner == name)
        try:
            found[members] = number * num_clients + divide(members)
        except ValueError as error:
            raise ValueError(f"{error}; within client {name} of the data") from None
    return found
