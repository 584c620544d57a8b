"""Who meets the deadline of a round, in virtual time."""

from collections.abc import Callable

import numpy as np

from flfast.algorithms.algorithm import Algorithm
from flfast.datamodules.batches import local_epoch
from flfast.datamodules.federated import FederatedDataModule
from flfast.federation.samplers.cohort import Cohort
from flfast.plan import RoundPlan
from flfast.randomness import generator


def in_time(
    cohort: Cohort,
    plan: RoundPlan,
    algorithm: Algorithm,
    data: FederatedDataModule,
    late: Callable[[int, np.random.Generator], bool] | None,
) -> Cohort:
    """The cohort without those who miss the deadline, a function of the seed, client and plan.

    Args:
        cohort: as it was drawn.
        plan: of the round.
        algorithm: says what is trained in a round.
        data: the population.
        late: as in `Faults`.
    """
    if late is None:
        return cohort
    misses = np.array(
        [
            late(examples_of(len(data.train_clients.of(k)), plan, algorithm), _own(data.seed, k))
            for k in cohort.clients.tolist()
        ],
        dtype=bool,
    )
    return cohort._replace(clients=cohort.clients[~misses], late=cohort.clients[misses])


def examples_of(num_examples: int, plan: RoundPlan, algorithm: Algorithm) -> int:
    """Examples that a client of M examples goes through in a round, every pass counted."""
    epoch = local_epoch(num_examples, plan.batching)
    if plan.local_steps is None:
        passes = sum(phase.epochs or plan.local_epochs or 1 for phase in algorithm.stages)
        return epoch.num_examples * passes
    steps = plan.local_steps * len(algorithm.stages)
    return epoch.num_examples * steps // epoch.num_steps


def _own(seed: int, client_id: int) -> np.random.Generator:
    return generator(seed, "speed", client_id)
