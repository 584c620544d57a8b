"""The calls of a cohort and of the server in one round; an algorithm makes one or several."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter

import numpy as np

from flfast.algorithms.contract import Algorithm, Uploads
from flfast.algorithms.contract.downloads import Order
from flfast.channel.sent import NOT_SELECTED, ClientReport
from flfast.engines.delivery import Trained
from flfast.engines.engine import Engine
from flfast.federation.samplers.cohort import Cohort
from flfast.federation.sampling import NOBODY
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree, tree_map


class DivergedError(RuntimeError):
    """NaN or infinity in every upload of a round, or in the server's model."""


class NoUploadsError(Exception):
    """Too few uploads of a call arrived; its text is the reason, or empty if none arrived."""


class Calls:
    """Calls the clients of a round; see `Round` in `algorithms/contract/algorithm.py`.

    All `on_client` get each report of calls in which clients train.

    Attributes:
        trained: result of the last call in which clients train, or of the call that failed.
        uploads: uploads of the algorithm's own call, the last one.
        answers: reports by client of the last call that was not the algorithm's own.
        down_bytes: downloaded by all clients in all calls, also by those that drop out.
        up_bytes: uploaded by all clients in all calls.
        reports: of clients in all calls.
    """

    def __init__(
        self,
        engine: Engine,
        cohort: Cohort,
        plan: RoundPlan,
        *,
        orders: Mapping[int, Order],
        on_client: Sequence[Callable[[ClientReport], None]] = (),
    ) -> None:
        self._engine, self._plan, self._orders = engine, plan, orders
        self.clients: list[int] = cohort.clients.tolist()
        self._num_silent = len(cohort.dropped) + len(cohort.late)
        self.number, self._on_client = plan.round_idx, on_client
        self.trained: Trained | None = None
        self.uploads: Uploads | None = None
        self.answers: dict[int, ClientReport] = {}
        self.down_bytes = self.up_bytes = 0
        self.reports: list[ClientReport] = []

    def call(
        self, server: Tree, local: Algorithm | None = None, *, clients: Sequence[int] | None = None
    ) -> Uploads:
        """See `Round`.

        Raises:
            NoUploadsError: if too few uploads arrived.
        """
        called, num_silent = self.clients, self._num_silent
        if clients is not None:
            called, num_silent = list(clients), 0
        trains = local is None or bool(local.training_stages)
        on_client = self._tell if trains else _ignored
        trained = self._engine.train(
            server, called, self._plan, on_client=on_client, local=local, orders=self._orders
        )
        self.down_bytes += trained.down_bytes * (len(called) + num_silent)
        self.up_bytes += sum(report.up_bytes for report in trained.reports)
        self.reports += trained.reports
        if local is not None:
            self.answers |= {report.client_id: report for report in trained.reports}
        if trains or (self.trained is None and trained.uploads is None):
            self.trained = trained
        if trained.uploads is None:
            raise NoUploadsError(trained.shortage)
        if local is None:
            self.uploads = trained.uploads
        return trained.uploads

    def _tell(self, report: ClientReport) -> None:
        for method in self._on_client:
            method(report)

    def rejected(self) -> dict[str, list[int]]:
        """Clients whose last upload was rejected, by reason; not those left out by a rule."""
        # A client may also diverge in a call after which the algorithm's own leaves it out.
        trained = self.trained.reports if self.trained else []
        found: dict[str, list[int]] = {}
        for report in {**self.answers, **{r.client_id: r for r in trained}}.values():
            if report.rejected and report.reason != NOT_SELECTED:
                found.setdefault(report.reason, []).append(report.client_id)
        return found

    def on_server(
        self,
        server: Tree,
        local: Algorithm,
        *,
        steps: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        member: int = 0,
    ) -> Tree:
        """See `Round`.

        Raises:
            DivergedError: if the upload is not finite.
        """
        plan, place = self._plan, self._engine.site.data.server
        assert place is not None, "setup refuses algorithms that lack the server's examples"
        if steps is not None:
            plan = plan._replace(local_steps=steps, local_epochs=None)
        if lr is not None:
            plan = plan._replace(lr=lr)
        if batch_size is not None:
            batching = plan.batching._replace(batch_size=batch_size, accumulate=1)
            plan = plan._replace(batching=batching)
        members = self._engine.members
        engine = members.engines[member] if members else self._engine
        trained = engine.train(server, [place], plan, on_client=_ignored, local=local)
        if trained.uploads is None:
            raise DivergedError(
                f"round {plan.round_idx}: training on the server's examples diverged (NaN or "
                f"infinity) at lr={plan.lr:g}; lower it, such as by algorithm.server_lr"
            )
        return {**trained.uploads.mean, **tree_map(itemgetter(0), trained.uploads.rows)}


def _ignored(report: ClientReport) -> None:
    pass


def no_bytes(_: int) -> tuple[int, int]:
    """The bytes of a client that sends and gets no messages; see `message_bytes`."""
    return 0, 0


def message_bytes(
    engine: Engine, initial: Tree, plan: RoundPlan, client_id: int
) -> tuple[int, int]:
    """Bytes that a client downloads and uploads in a round, in all of its calls; collective.

    Found by a round with this client and one local step, which is forgotten. An algorithm that
    needs several clients for a call counts up to that call.
    """
    algorithm = engine.site.algorithm
    cohort = Cohort(np.array([client_id]), NOBODY)
    plan = plan._replace(local_steps=1, local_epochs=None)
    calls = Calls(engine.forgetful(), cohort, plan, orders={})
    with suppress(NoUploadsError, DivergedError):  # messages of that call are counted, too
        algorithm.one_round(algorithm.server_state(initial), calls)
    return calls.down_bytes, calls.up_bytes
