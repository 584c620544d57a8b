"""The upload of a client that takes one local step on a few examples, as the server receives it.

The step is the run's own: its algorithm, optimizer, privacy and compression. So an attack on it
meets what protects the run.
"""

from copy import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from flfast.algorithms.contract.downloads import Downloads
from flfast.channel.attacks.attack import NO_ATTACK
from flfast.channel.faults.fault import NO_FAULTS
from flfast.channel.sent import LocalResult, Sender
from flfast.channel.sides import ClientSide, ServerSide
from flfast.datamodules.examples import ClientIndices
from flfast.datamodules.federated import FederatedDataModule
from flfast.distributed.assignment import fetch_states, owner
from flfast.distributed.world import ALONE
from flfast.engines.eager import EagerTraining
from flfast.engines.site import Site
from flfast.federation.loop import Federation
from flfast.state.plan import Batching
from flfast.state.store import ClientStates
from flfast.state.tree import Tree


class Intercepted(NamedTuple):
    """An upload of one local step, as the server knows it.

    Attributes:
        start: weights that the client received, `{"params": ..., "buffers": ...}`.
        change: uploaded change of the parameters by name, on the CPU.
    """

    start: Tree
    change: dict[str, Tensor]


def intercept(
    federation: Federation, client_id: int, examples: np.ndarray
) -> Intercepted | str | None:
    """The upload after the client's part of the channel; collective.

    Attackers and faults are left out. The run's client states, and all else, stay as they are. The
    client takes one step on the given examples, int64 [B], after the last round.

    Returns:
        Why no upload arrives, if none does. None on other ranks than 0.
    """
    engine = federation.engine
    site, algorithm = _site(engine.site, client_id, examples), federation.algorithm
    if engine.site.world.rank != 0:
        return None
    last = int(federation.history[-1]["round"])
    plan = federation.plans(max(last, 1), federation.history[:last])._replace(
        round_idx=last + 1,
        batching=Batching(batch_size=-1),
        local_epochs=None,
        local_steps=1,
        strategy="single",
        shard="clients",
        work_fraction=1.0,
    )
    channel = replace(engine.channel, attack=NO_ATTACK, attackers=frozenset(), faults=NO_FAULTS)
    encode = channel.encode_broadcast(plan.round_idx)
    downloads = Downloads(algorithm, federation.server, site.records, [client_id], encode=encode)
    results: list[LocalResult] = []
    EagerTraining(site).train([client_id], downloads, plan, results.extend)
    sender = Sender(client_id, plan.round_idx)
    answer = ClientSide(algorithm, channel)(results[0], sender, site.residual(client_id))
    report = ServerSide(algorithm, channel)(sender, answer.sent)
    if report.upload is None:
        return report.reason
    return Intercepted(results[0].context.start, report.upload["params"])


def _site(site: Site, client_id: int, examples: np.ndarray) -> Site:
    """A site for one client that has the given examples; collective."""
    states = ClientStates()
    if site.keeps_states:
        if owner(site.world, client_id) == site.world.rank:
            state = site.states.get(client_id)
            if state is not None:
                states.put(client_id, state)
        fetch_states(site.world, states, [client_id], wanted=[client_id])
    return replace(site, data=_only(site.data, client_id, examples), states=states, world=ALONE)


def _only(data: FederatedDataModule, client_id: int, examples: np.ndarray) -> FederatedDataModule:
    """The data with no other training examples, which are not augmented."""
    sizes = np.zeros(len(data.train_clients.offsets) - 1, dtype=np.int64)
    sizes[client_id] = len(examples)
    only = copy(data)
    only.train_clients = ClientIndices(examples, np.concatenate([[0], np.cumsum(sizes)]))
    plain = replace(data.examples.transform, random_crop=0, random_flip=False)
    only.examples = replace(data.examples, transform=plain)
    return only
