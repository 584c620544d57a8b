"""The engine: trains cohorts on all ranks, reduces their uploads, and evaluates models.

`federation/calls.py` calls `Engine.train`, once or several times a round. The clients are assigned
to ranks, each rank trains its share with a `LocalTraining`, which `engine=` chooses, and the ranks
reduce the uploads to their mean.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from flfast.algorithms.contract import Algorithm, ServerCall, Uploads
from flfast.algorithms.contract.downloads import Downloads, Order
from flfast.channel.aggregations.aggregation import Aggregation
from flfast.channel.channel import DIRECT, Channel
from flfast.channel.reduced import Reduction
from flfast.channel.reduction import reduction_for
from flfast.channel.release import Aggregated, released, with_next_norm
from flfast.channel.row_reduction import Basis
from flfast.channel.secure_reduction import secure_reduction
from flfast.channel.sent import ClientReport
from flfast.channel.sides import CLIPPED
from flfast.distributed.assignment import fetch_states, return_states
from flfast.distributed.world import ALONE
from flfast.engines.delivery import Delivery, Trained, after_reduction, exchange
from flfast.engines.evaluation.measured_set import MeasuredSet
from flfast.engines.evaluation.metrics import GroupMetrics
from flfast.engines.evaluation.module_evaluation import evaluation_of
from flfast.engines.evaluation.passes import Evaluation, FineTune, for_evaluation
from flfast.engines.local_training import LocalTraining
from flfast.engines.site import Site, assign, reference_name
from flfast.state.plan import RoundPlan
from flfast.state.store import ClientStates
from flfast.state.tree import Tree


class MemberEngines(NamedTuple):
    """The members of a family of models, of whom each client has one.

    Attributes:
        engines: of the members.
        flops: of a forward pass of each member, float64 [M].
        about: columns of row 0 that describe the members.
        make_downloads: makes the downloads of a call; arguments are those of `Downloads`.
    """

    engines: "Sequence[Engine]"
    flops: np.ndarray
    about: Mapping[str, float]
    make_downloads: Callable[..., Downloads]


class _Call(NamedTuple):
    """What a cohort does, and what its uploads are compared with."""

    site: Site
    training: LocalTraining
    channel: Channel
    reference: Tree = {}  # noqa: RUF012 - never changed


class Engine:
    """Runs cohorts and evaluation passes; one object on every rank of the world.

    Each rank trains its share of the cohort (`shard=clients`), or all ranks train every client
    together (`shard=batch`, `fsdp`). A plan for one device runs on rank 0.

    Args:
        site: model, data, Trainers and client states of this rank.
        training: trains clients.
        channel: transmits uploads; by default they arrive unchanged.
        calls: (site, training) of the algorithm's `calls` and `server_calls`, by name; and of
            references, if the aggregation needs them (`reference_site`).
        finetune: trains weights further for the `finetuned` metrics; None is off.
        decided: decisions of `auto` on this rank, as plain values for checkpoints.
        evaluation: measures models; by default on this rank's examples.
        members: of a family of models; None: all clients have the same one.

    Attributes:
        channel: with what the server remembers of it after the last round.
        evaluation_sets: names of the sets that `evaluate` measures.
    """

    def __init__(  # noqa: PLR0913 - parts of a run
        self,
        site: Site,
        training: LocalTraining,
        *,
        channel: Channel | None = None,
        calls: Mapping[str, tuple[Site, LocalTraining]] | None = None,
        finetune: FineTune | None = None,
        decided: dict[str, Any] | None = None,
        evaluation: Evaluation | None = None,
        members: MemberEngines | None = None,
    ) -> None:
        self.site, self.training, self._calls = site, training, calls or {}
        self.channel = channel or Channel()
        self.decided = {} if decided is None else decided
        self._last_call = 0, 0
        self.finetune, self.members = finetune, members
        self._evaluation = evaluation or evaluation_of(site, finetune)
        self.evaluation_sets = self._evaluation.sets

    def choose(self, plan: RoundPlan) -> str:
        """How clients train under a plan; see `LocalTraining.choose`."""
        for _, training in self._calls.values():
            training.choose(plan)
        return self.training.choose(plan)

    def train(
        self,
        server: Tree,
        cohort: Sequence[int],
        plan: RoundPlan,
        *,
        on_client: Callable[[ClientReport], None],
        local: Algorithm | None = None,
        orders: Mapping[int, Order] | None = None,
    ) -> Trained:
        """Train a cohort and reduce its uploads to their mean; collective.

        `on_client` gets the report of each client that this rank trained. `local` is one of the
        algorithm's calls; None is the algorithm itself. `orders` are by client, for those that do
        something else than the others.
        """
        channel = DIRECT if isinstance(local, ServerCall) else self.channel
        site, training = self.part_of((local or self.site.algorithm).name)
        reference = self._reference(site.algorithm.name, server, plan, channel.aggregation)
        call = _Call(site, training, channel, reference)
        return self._train(call, server, cohort, plan, on_client, orders or {})

    def _train(
        self,
        call: _Call,
        server: Tree,
        cohort: Sequence[int],
        plan: RoundPlan,
        on_client: Callable[[ClientReport], None],
        orders: Mapping[int, Order],
    ) -> Trained:
        """See `train`."""
        site, training, channel = call[:3]
        flops = self.members.flops if self.members else None
        assignment = assign(site, cohort, plan, flops)
        if site.keeps_states:
            fetch_states(site.world, site.states, assignment.moved, wanted=assignment.here)
        encode = channel.encode_broadcast(plan.round_idx)
        make = self.members.make_downloads if self.members else Downloads
        downloads = make(site.algorithm, server, site.records, cohort, orders, encode=encode)
        reduction = self._reduction(call, cohort, plan.round_idx)
        delivery = Delivery(site, channel, reduction, downloads, plan, on_client)
        training.train(assignment.here, downloads, plan, delivery)
        divided = site.divides_batches(plan)
        world = ALONE if divided else site.world
        delivered, specs = exchange(world, delivery.close(world), reduction, cohort)
        device = site.trainers.trainer(plan).trainer.strategy.root_device
        reduced = reduction.combine(world._replace(device=device), specs)
        if reduced.memory:
            self.channel = channel.remembering(site.algorithm.name, reduced.memory)
        num_clients: float = sum(report.accepted for report in delivered)
        reports, mean = [after_reduction(report, reduced) for report in delivered], reduced.mean
        if channel.privacy.central_noise is not None and mean is not None:
            within = sum(report.accepted and report.reason != CLIPPED for report in delivered)
            aggregated = Aggregated(plan.round_idx, round(num_clients), within)
            mean, after = released(self.channel, mean, site.algorithm.parts, aggregated)
            self.channel = with_next_norm(after, aggregated)
            num_clients = channel.privacy.expected_clients or num_clients
        if site.keeps_states:
            return_states(site.world, site.states, assignment.moved, trained=assignment.here)
        uploads = None
        if mean is not None:
            rows = reduced.rows, reduced.clients, reduced.weights
            population, sent = len(site.data.candidates), downloads.sent_to(reduced.clients)
            uploads = Uploads(mean, num_clients, population, *rows, plan.round_idx, sent)
        down_bytes = downloads.num_bytes + (reduced.traffic.down if reduced.traffic else 0)
        return Trained(uploads, reports, reduced.shortage, down_bytes)

    def _reduction(self, call: _Call, cohort: Sequence[int], round_idx: int) -> Reduction:
        """What collects the uploads of a call."""
        site, channel, algorithm = call.site, call.channel, call.site.algorithm
        if channel.secure.make_round is not None:
            last_round, number = self._last_call
            # Two calls of a round must not have the same masks.
            self._last_call = round_idx, number + 1 if round_idx == last_round else 0
            return secure_reduction(channel, algorithm, cohort, self._last_call)
        basis = Basis(site.data.num_clients, channel.remembered(algorithm.name), call.reference)
        return reduction_for(channel.aggregation, cohort, algorithm.parts, basis)

    def _reference(
        self, name: str, server: Tree, plan: RoundPlan, aggregation: Aggregation
    ) -> Tree:
        """The server's own upload in a call; collective.

        Returns:
            Empty if the aggregation does not ask for it, or if the training diverged.
        """
        place = self.site.data.server
        if not aggregation.trusted or place is None:
            return {}
        call = _Call(*self._calls[reference_name(name)], DIRECT)
        trained = self._train(call, server, [place], plan, lambda report: None, {})
        call.site.states.drop(place)
        return trained.uploads.mean if trained.uploads else {}

    def remember(self, memory: Tree) -> None:
        """Go on with what the server remembers of the channel, by name of the call."""
        self.channel = replace(self.channel, memory=memory)

    def forgetful(self) -> "Engine":
        """An engine that keeps nothing of clients: each rank trains whole cohorts for itself.

        Uploads arrive as they were encoded.
        """

        def forgetful(site: Site) -> Site:
            return replace(site, states=ClientStates(), records=ClientStates(), world=ALONE)

        calls = {k: (forgetful(site), training) for k, (site, training) in self._calls.items()}
        return Engine(
            forgetful(self.site),
            self.training,
            channel=self.channel.encodes_only,
            calls=calls,
            members=self.members,
        )

    def part_of(self, call: str) -> tuple[Site, LocalTraining]:
        """What trains clients in a call of the algorithm, or in its own, by name.

        Raises:
            ValueError: if there is no call of this name.
        """
        algorithm = self.site.algorithm
        if call == algorithm.name:
            return self.site, self.training
        if call not in self._calls:
            raise ValueError(f"algorithm={algorithm.name}: {call!r} is none of its calls=(...)")
        return self._calls[call]

    def elsewhere(
        self,
        make_training: Callable[[Site, LocalTraining], LocalTraining],
        evaluation: Evaluation,
        *,
        channel: Channel | None = None,
        members: MemberEngines | None = None,
    ) -> "Engine":
        """An engine of the same run whose clients train, and are evaluated, by other objects."""
        calls = {k: (pair[0], make_training(*pair)) for k, pair in self._calls.items()}
        return Engine(
            self.site,
            make_training(self.site, self.training),
            channel=channel or self.channel,
            calls=calls,
            decided=self.decided,
            evaluation=evaluation,
            members=members,
        )

    def evaluate(
        self, server: Tree, plan: RoundPlan, *, fraction: float = 1.0
    ) -> dict[str, GroupMetrics]:
        """Metrics by evaluation set: see `output/results/columns.py` for their names.

        Every example is predicted once; each rank predicts a part of them. Collective. `fraction`
        is of each client's and of the central test examples, in (0, 1].
        """
        plan = for_evaluation(plan)
        together = self.site.divides_batches(plan)
        return self._evaluation(server, plan, together=together, fraction=fraction)

    def measure(
        self, server: Tree, plan: RoundPlan, passes: Sequence[tuple[str, ...]]
    ) -> list[MeasuredSet]:
        """Chosen evaluation sets with their predictions, on a single rank."""
        return self._evaluation.measure(server, for_evaluation(plan), passes)

    def personal_weights(self, server: Tree, client_id: int) -> Tree:
        """Weights of a client's own model; the client's state must be on this rank."""
        return self._evaluation.personal_weights([client_id], server, together=False)[client_id]

    def close(self) -> None:
        """Print the profiler's report, and stop data workers."""
        self.site.trainers.close()
        self.site.data.close()
        self.site.states.close()
        self.site.records.close()
