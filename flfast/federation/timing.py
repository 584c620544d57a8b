"""How long clients take, in virtual time, and which of them fail on the way."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from flfast.algorithms.contract import Algorithm
from flfast.datamodules.batches import local_epoch, subset_size
from flfast.datamodules.federated import FederatedDataModule
from flfast.federation.devices.device import DeviceModel, Devices
from flfast.federation.devices.ideal import ideal
from flfast.federation.works import Work, full
from flfast.state.injection import bound
from flfast.state.plan import RoundPlan
from flfast.state.randomness import uniforms


class Trips(NamedTuple):
    """The trips of K clients, from download to upload; every array is float64 [K].

    Attributes:
        work_fractions: fraction of the local epochs or steps that each client does, in (0, 1].
        seconds: until the upload has arrived, or the client fails.
        fails: whether the client fails; bool [K].
    """

    work_fractions: np.ndarray
    seconds: np.ndarray
    fails: np.ndarray


class Timing:
    """The virtual time of a run.

    A client's trip takes

        fixed + per_example * examples trained on * cost + broadcast / down + upload / up

    seconds. The cost is 1, unless clients have models of several architectures. It fails if the
    device fails before, or is no longer available.

    `message_bytes` gives the bytes of a client's downloads and uploads in a round. It is called
    only if some device has a bandwidth, for one client of each model. `costs` are those of the
    models, relative to the first, float64 [M].

    Attributes:
        is_ideal: whether all clients take the same time.
        is_full: whether all clients do all of their work.
    """

    def __init__(
        self,
        devices: DeviceModel,
        work: Work,
        data: FederatedDataModule,
        algorithm: Algorithm,
        message_bytes: Callable[[int], tuple[int, int]],
        costs: np.ndarray | None = None,
    ) -> None:
        self._model, self._work = bound(devices, seed=data.seed), bound(work)
        self._work_reads = inspect.signature(work).parameters
        self._data, self._algorithm = data, algorithm
        self._message_bytes = cache(message_bytes)
        self._costs = np.ones(1) if costs is None else costs
        of = self._models(data.candidates)  # any client for a model that nobody has
        self._one_of_each = data.candidates[[np.argmax(of == m) for m in range(len(self._costs))]]
        self.is_ideal = getattr(devices, "func", devices) is ideal
        self.is_full = getattr(work, "func", work) is full

    def check(self, plan: RoundPlan) -> None:
        """Refuse options of devices and work, and find sizes of messages; collective.

        Raises:
            ValueError: with the key, the value, and what is allowed.
        """
        if not (self.is_ideal and self.is_full):
            self.trips(self._one_of_each, plan, clock=0.0)

    def devices(self, clients: np.ndarray) -> Devices:
        """The devices of clients, int64 [K]."""
        return self._model(clients)

    def trips(
        self, clients: np.ndarray, plan: RoundPlan, *, clock: float | np.ndarray, number: int = 0
    ) -> Trips:
        """The trips of clients, int64 [K], that download the plan's model and start at `clock`.

        If clients may begin several times in a round, `number` is that of the draw: a client that
        fails need not fail again.
        """
        devices, seed = self.devices(clients), self._data.seed
        around = devices.fixed + self._transfer_seconds(devices, clients)
        training = self._training_seconds(devices, clients, plan, np.ones(len(clients)))
        known = {"clients": clients, "round_idx": plan.round_idx, "seed": seed}
        known |= {"training": training, "around": around}
        read = known.keys() & self._work_reads.keys()
        work_fractions = self._work(**{name: known[name] for name in read})
        if (work_fractions < 1).any():
            training = self._training_seconds(devices, clients, plan, work_fractions)
        seconds = around + training
        lifetimes = np.full(len(clients), np.inf)
        fragile = devices.hazard > 0
        path = (plan.round_idx, number) if number else (plan.round_idx,)
        drawn = -np.log(uniforms(seed, "device failure", clients, *path))
        lifetimes[fragile] = drawn[fragile] / devices.hazard[fragile]
        lifetimes = np.minimum(lifetimes, devices.until(clock))
        return Trips(work_fractions, np.minimum(seconds, lifetimes), lifetimes < seconds)

    def _transfer_seconds(self, devices: Devices, clients: np.ndarray) -> np.ndarray:
        if np.isinf(devices.down).all() and np.isinf(devices.up).all():
            return np.zeros(len(devices.down))
        sizes = [self._message_bytes(client_id) for client_id in self._one_of_each.tolist()]
        down, up = np.array(sizes)[self._models(clients)].T
        return down / devices.down + up / devices.up

    def _models(self, clients: np.ndarray) -> np.ndarray:
        """Place of each client's model, int64 [K]."""
        kinds = self._data.kinds
        return np.zeros(len(clients), dtype=np.int64) if kinds is None else kinds.of[clients]

    def _training_seconds(
        self, devices: Devices, clients: np.ndarray, plan: RoundPlan, work_fractions: np.ndarray
    ) -> np.ndarray:
        """Virtual seconds of local training, float64 [K]."""
        if not devices.per_example.any():
            return np.zeros(len(clients))
        train = self._data.train_clients
        sizes = [len(train.indices_of(client_id)) for client_id in clients.tolist()]
        plans = [plan._replace(work_fraction=fraction) for fraction in work_fractions.tolist()]
        pairs = zip(sizes, plans, strict=True)
        found = [num_trained_examples(size, own, self._algorithm) for size, own in pairs]
        examples = np.array(found, dtype=np.float64)
        return devices.per_example * examples * self._costs[self._models(clients)]


def num_trained_examples(num_examples: int, plan: RoundPlan, algorithm: Algorithm) -> int:
    """Examples that a client trains on in a round; an example counts once per pass."""
    whole, total = local_epoch(num_examples, plan.batching), 0
    for stage in algorithm.training_stages:
        own = plan.for_stage(stage.epochs).with_work_fraction(whole.num_steps)
        epoch = local_epoch(subset_size(num_examples, stage.share), plan.batching)
        if own.local_steps is None:
            total += epoch.num_examples * (own.local_epochs or 1)
        else:
            total += epoch.num_examples * own.local_steps // epoch.num_steps
    return total
