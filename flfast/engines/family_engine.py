"""Trains and evaluates clients with models of their own: each with its member of a family.

A member has an engine of its own: its model, programs, stacks and optimizer. All members share the
clients' states and the records of the server. Of a call, each member trains its clients, and one
reduction gets all uploads.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter

import numpy as np

from flfast.algorithms.contract import Algorithm
from flfast.algorithms.contract.downloads import Download, Downloads, Order, first_downloads
from flfast.datamodules.evaluation_sets import EvaluationDataModule, EvaluationPart
from flfast.engines.delivery import Delivery
from flfast.engines.engine import Engine, MemberEngines
from flfast.engines.evaluation.passes import Evaluation
from flfast.engines.local_training import Deliver, LocalTraining
from flfast.engines.site import Site
from flfast.lit.batchnorm import batchnorm_layers
from flfast.lit.predictions import PredictionStore
from flfast.state.plan import RoundPlan
from flfast.state.store import ClientStates
from flfast.state.tree import Tree, merge, num_bytes, without
from flfast.state.weights import model_weights


def family_engine(
    engines: Sequence[Engine],
    of: np.ndarray,
    initial: Sequence[Tree],
    flops: np.ndarray,
    about: Mapping[str, float],
) -> Engine:
    """An engine that trains each client with the model of its member.

    Args:
        engines: of the members.
        of: place of each client's member, int64 [K].
        initial: weights of the members before round 1.
        flops: operations of a forward pass of each member, float64 [M].
        about: columns of row 0 that describe the members.
    """

    def train(site: Site, _: LocalTraining) -> LocalTraining:
        return FamilyTraining([one.part_of(site.algorithm.name) for one in engines], of)

    members = MemberEngines(engines, flops, about, partial(FamilyDownloads, engines, of))
    return engines[0].elsewhere(train, FamilyEvaluation(engines, of, initial), members=members)


class FamilyDownloads(Downloads):
    """Downloads of clients who get different parts of the model; see `Downloads`.

    For `engines` and `of` see `family_engine`. `num_bytes` is the mean over the call's clients.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - those of `Downloads`
        self,
        engines: Sequence[Engine],
        of: np.ndarray,
        algorithm: Algorithm,
        server: Tree,
        records: ClientStates,
        clients: Sequence[int],
        orders: Mapping[int, Order] | None = None,
        *,
        encode: Callable[[Tree], tuple[Tree, int]] | None = None,
    ) -> None:
        super().__init__(algorithm, server, records, clients, orders, encode=encode)
        self._of, self._members = of, dict[int, Downloads]()
        if algorithm.kit.place is None:
            return
        sizes = []
        for place in np.unique(of[list(clients)]).tolist():
            own = engines[place].part_of(algorithm.name)[0].algorithm
            told = [client_id for client_id in clients if of[client_id] == place]
            found = Downloads(own, server, records, told, orders, encode=encode)
            self._members[place] = found
            sizes += [found.num_bytes] * len(told)
        self.num_bytes = round(sum(sizes) / max(len(sizes), 1))

    def __call__(self, client_id: int) -> Tree:
        """See `Download`."""
        if not self._members:
            return super().__call__(client_id)
        return self._members[int(self._of[client_id])](client_id)


def _plan_of(site: Site, plan: RoundPlan) -> RoundPlan:
    """The plan for a member: only models with BatchNorm leave out a batch of one example."""
    has_batchnorm = any(True for _ in batchnorm_layers(site.model))
    drops = has_batchnorm and not site.module.freeze_batchnorm
    return plan._replace(batching=plan.batching._replace(drop_single=drops))


class FamilyTraining:
    """Trains the clients of each member together; see `LocalTraining`.

    `parts` are site and training of each member. For `of` see `family_engine`; the server's member
    is the first one.
    """

    def __init__(self, parts: Sequence[tuple[Site, LocalTraining]], of: np.ndarray) -> None:
        self._parts, self._of = parts, of
        self.name = parts[0][1].name

    def choose(self, plan: RoundPlan) -> str:
        """How the members' clients train."""
        return ", ".join(dict.fromkeys(training.choose(plan) for _, training in self._parts))

    def train(
        self, clients: Sequence[int], download: Download, plan: RoundPlan, deliver: Deliver
    ) -> None:
        """Train clients, member by member; see `LocalTraining`."""
        for place, (site, training) in enumerate(self._parts):
            own = [k for k in clients if (self._of[k] if k < len(self._of) else 0) == place]
            if own:
                to = deliver.for_site(site) if isinstance(deliver, Delivery) else deliver
                start = perf_counter()
                training.train(own, download, _plan_of(site, plan), to)
                if isinstance(deliver, Delivery):  # a GPU is not waited for
                    share = (perf_counter() - start) / len(own)
                    deliver.seconds.update(dict.fromkeys(own, share))


class FamilyEvaluation(Evaluation):
    """Lets each client's own model predict; see `Evaluation`, and `family_engine`."""

    def __init__(self, engines: Sequence[Engine], of: np.ndarray, initial: Sequence[Tree]) -> None:
        first = engines[0]
        super().__init__(first.site, first.finetune)
        self._of, self.largest = of, max(map(num_bytes, initial))
        self._members = [(one.site, Evaluation(one.site, one.finetune)) for one in engines]
        shared = model_weights(first_downloads(first.site.algorithm, initial[0])(0))
        self._local = [without(weights, shared) for weights in initial]

    def _server_of(self, place: int, server: Tree) -> Tree:
        """The server state as a member sees it.

        It has the member's slice of the model, or initial weights where the server has none.
        """
        algorithm = self._members[place][0].algorithm
        if algorithm.kit.place is not None:
            return {**server, **model_weights(algorithm.broadcast(server))}
        return merge(without(server, self._local[0]), self._local[place])

    def predict_own(
        self,
        server: Tree,
        plan: RoundPlan,
        examples: tuple[EvaluationDataModule, EvaluationPart],
        store: PredictionStore,
    ) -> None:
        """See `Evaluation`; the clients of a part are of one member."""
        place = int(self._of[examples[1].clients[0]])
        site, evaluation = self._members[place]
        server, plan = self._server_of(place, server), _plan_of(site, plan)
        evaluation.predict_own(server, plan, examples, store)

    def personal_weights(
        self, clients: Sequence[int], server: Tree, *, together: bool
    ) -> dict[int, Tree]:
        """See `Evaluation`."""
        found: dict[int, Tree] = {}
        for place, (_, evaluation) in enumerate(self._members):
            own = [k for k in clients if self._of[k] == place]
            if own:
                state = self._server_of(place, server)
                found |= evaluation.personal_weights(own, state, together=together)
        return {k: found[k] for k in clients}
