"""Puts the algorithm on the nodes of the configured topology."""

import numpy as np
from hydra.utils import instantiate
from omegaconf import DictConfig

from flfast.algorithms.contract import Algorithm
from flfast.datamodules.federated import FederatedDataModule
from flfast.federation.topologies.topology import Topology, on_nodes
from flfast.state.injection import call_with


def on_topology(
    config: DictConfig, algorithm: Algorithm, data: FederatedDataModule
) -> tuple[Algorithm, Topology | None]:
    """The algorithm on the nodes of the topology, and the topology if there are nodes.

    Raises:
        ValueError: if the topology does not fit the clients or the algorithm.
    """

    def class_counts() -> np.ndarray:
        targets, train, num = np.asarray(data.examples.targets), data.splits["train"], 0
        if data.examples.task == "classification":
            num = data.num_classes
        own = (train.indices_of(client_id) for client_id in range(data.num_clients))
        return np.array([np.bincount(targets[k], minlength=num) if num else [len(k)] for k in own])

    offers = {
        "class_counts": class_counts,
        "participants": data.participants,
        "num_clients": data.num_clients,
        "seed": config.seed,
    }
    topology = call_with(instantiate(config.topology), **offers)
    if topology is None:
        return algorithm, None
    if data.pooled:
        raise ValueError("topology: mode=centralized has one client; allowed: topology=star")
    return on_nodes(algorithm, topology), topology
