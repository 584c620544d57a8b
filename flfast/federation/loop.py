"""The outer loop. Each round: plan, cohort, local training, server step, evaluation."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from lightning.pytorch.loggers import Logger
from torch import Tensor

from flfast.algorithms.contract import Algorithm
from flfast.channel.sides import DIVERGED
from flfast.datamodules.federated import FederatedDataModule
from flfast.distributed.assignment import owner
from flfast.engines.delivery import Trained
from flfast.engines.engine import Engine
from flfast.engines.recalibration import recalibrate_batchnorm
from flfast.federation import table_rows
from flfast.federation.calls import Calls, DivergedError, NoUploadsError, message_bytes, no_bytes
from flfast.federation.devices.device import DeviceModel
from flfast.federation.devices.ideal import ONE_SECOND
from flfast.federation.hooks import end_run, hooks, log_row
from flfast.federation.paces.pace import Pace, Setting
from flfast.federation.paces.sync import ROUNDS
from flfast.federation.samplers.cohort import Cohort
from flfast.federation.sampling import Sampling
from flfast.federation.selections import reported_utility
from flfast.federation.stops import Stop, never
from flfast.federation.table_rows import Columns
from flfast.federation.timing import Timing
from flfast.federation.topologies.topology import Topology
from flfast.federation.works import Work, full
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree, all_finite, num_bytes
from flfast.state.weights import WEIGHTS, flatten, model_weights

log = logging.getLogger(__name__)


@dataclass
class Federation:
    """A federated run.

    Attributes:
        sampler: (num_clients, rng) -> cohort; held-out clients are not counted. It also gets
            what else it names of what `Sampling` offers.
        plans: (round, rows so far) -> plan.
        initial: weights before round 1.
        eval_every: rounds between evaluations; the last round is always evaluated.
        eval_examples: share of the examples that evaluations use.
        recalibrate: measure BatchNorm statistics after every server step.
        stop: ends the run before its last round.
        devices: speed, bandwidth and availability of clients' devices, in virtual time.
        work: the fraction of local training that each client does.
        make_pace: (setting=...) -> the pace of the run.
        topology: nodes that the algorithm runs on; None is one server.
        callbacks: Lightning's callbacks, and other objects with hooks of rounds.
        loggers: Lightning's loggers; each gets one row per round.
        title: one line for figures and tables.
        server: server state of a run that is resumed; empty if it begins.
        history: its rows so far; row r describes round r, row 0 the initial weights.
    """

    algorithm: Algorithm
    engine: Engine
    data: FederatedDataModule
    sampler: Callable[..., Cohort]
    plans: Callable[[int, Sequence[Columns]], RoundPlan]
    initial: Tree
    rounds: int
    eval_every: int
    seed: int
    eval_examples: float = 1.0
    recalibrate: bool = False
    stop: Stop = field(default_factory=never)
    devices: DeviceModel = ONE_SECOND
    work: Work = full
    make_pace: Callable[..., Pace] = ROUNDS
    topology: Topology | None = None
    callbacks: Sequence[object] = ()
    loggers: list[Logger] = field(default_factory=list)
    run_dir: Path = Path()
    title: str = "flfast"
    server: Tree = field(default_factory=dict)
    history: list[Columns] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with the algorithm's server state, unless the run is resumed."""
        if not self.server:
            self.server = self.algorithm.server_state(self.initial)
        self._single_class: list[str] = []

    @cached_property
    def sampling(self) -> Sampling:
        """Draws clients."""
        return Sampling(self.sampler, self.data, seed=self.seed, rounds=self.rounds)

    @cached_property
    def timing(self) -> Timing:
        """The virtual time of the run."""
        # A client that is its node sends nothing before nodes exchange their models.
        is_node = self.topology is not None and self.topology.cloud_bandwidth is None
        plan = self.plans(1, [])
        measure = no_bytes if is_node else partial(message_bytes, self.engine, self.initial, plan)
        members = self.engine.members
        costs = None if members is None else members.flops / members.flops[0]
        return Timing(self.devices, self.work, self.data, self.algorithm, measure, costs)

    @cached_property
    def pace(self) -> Pace:
        """Decides whose uploads each step of the server aggregates."""
        return self.new_pace()

    def new_pace(self) -> Pace:
        """A pace before round 1.

        Raises:
            ValueError: if the sampler cannot draw the clients that it needs.
        """
        size = num_bytes(self.initial)
        pace = self.make_pace(setting=Setting(self.sampling, self.timing, self.topology, size))
        pace.check()
        return pace

    def run(self) -> list[Columns]:
        """Run all rounds that are not in `history` yet.

        Returns:
            One row per round, with the columns of `metrics.csv`; row 0 is before training.

        Raises:
            DivergedError: if all uploads of a round, or the server's model, are not finite.
        """
        status = "failed"
        try:
            self._call_hooks("on_run_start")
            if not self.history:
                members = self.engine.members
                row: Columns = {"round": 0, **(members.about if members else {})}
                self._finish_round(row, {}, evaluate=self.plans(1, []))
            while len(self.history) <= self.last_round:
                self._round(len(self.history))
            if reason := self.stop(self.history):
                log.info("ends after round %d of %d: %s", self.last_round, self.rounds, reason)
            if self._single_class:
                log.warning(
                    "one class is predicted for every example of %s, although others occur there: "
                    "the accuracy is the share of this class",
                    ", ".join(self._single_class),
                )
            status = "success"
        finally:
            # Callbacks write their files after a failed or stopped run, too.
            try:
                if self.history:
                    end_run(self.callbacks, self, status)
                if status == "success":
                    self._call_hooks("on_run_complete")
            finally:
                self._close(status)
        return self.history

    def _close(self, status: str) -> None:
        if status == "failed" and self.history:
            log.warning("stopped after round %d: %s", self.history[-1]["round"], self.run_dir)
        for closable in (*self.callbacks, self.engine):
            getattr(closable, "close", lambda: None)()
        for logger in self.loggers:
            logger.finalize(status)

    def weights(self) -> dict[str, Tensor]:
        """State dict of the server's model, on the CPU.

        If the server has no complete model, of what it broadcasts and else keeps, such as
        prototypes or several models.
        """
        if self.algorithm.evaluate_server:
            return flatten(model_weights(self.server))
        others = (*WEIGHTS, reported_utility.KEY)
        kept = {name: part for name, part in self.server.items() if name not in others}
        return flatten({**kept, **self.algorithm.broadcast(self.server)})

    def personal_weights(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """(client, state dict of its own model) for clients whose states are on this rank."""
        world = self.engine.site.world
        for client_id in self.data.candidates.tolist():
            if owner(world, client_id) == world.rank:
                yield client_id, flatten(self.engine.personal_weights(self.server, client_id))

    def cohort(self, round_idx: int) -> Cohort:
        """The cohort that the sampler draws in a round; a function of seed and round."""
        return self.sampling.cohort(round_idx)

    @property
    def last_round(self) -> int:
        """The round after which the run ends, as far as that is known."""
        return int(self.history[-1]["round"]) if self.stop(self.history) else self.rounds

    @property
    def population(self) -> int:
        """Number of clients that may be drawn; 1 for the centralised baseline."""
        return len(self.data.candidates)

    def _round(self, round_idx: int) -> None:
        start = time.perf_counter()
        plan = self.plans(round_idx, self.history)
        if round_idx > 1:
            before = self.plans(round_idx - 1, self.history[:-1])
            if plan._replace(round_idx=0, lr=0) != before._replace(round_idx=0, lr=0):
                log.info("round %d: %s", round_idx, plan.describe())
        turn = self.pace.turn(plan, partial(self.algorithm.broadcast, self.server))
        cohort = turn.cohort
        self._call_hooks("on_turn", turn)
        self._call_hooks("on_round_start", plan, cohort)
        on_client = hooks(self.callbacks, "on_client_end", self)
        calls = Calls(self.engine, cohort, plan, orders=turn.orders, on_client=on_client)
        trained = self._server_step(calls, plan, cohort)
        down, up = self._recalibrate(trained, plan)
        idle = table_rows.idle_rows(trained, cohort, calls.answers)
        seconds = time.perf_counter() - start
        row = {
            "round": round_idx,
            **table_rows.training_columns(trained, cohort, idle, seconds=seconds),
            **turn.columns,
            "comm/up_bytes": up + calls.up_bytes,
            "comm/down_bytes": down + calls.down_bytes,
            **table_rows.plan_columns(plan),
            **table_rows.channel_columns(self.engine.channel, round_idx),
            **table_rows.member_columns(calls.reports, self.data.kinds),
        }
        if self.data.pooled:  # the centralised baseline communicates nothing
            row |= {"comm/up_bytes": 0, "comm/down_bytes": 0}
        self._call_hooks("on_round_trained", row)
        due = round_idx % self.eval_every == 0 or round_idx == self.rounds
        # The pooled client of the centralised baseline is not a client of the population.
        clients = {} if self.data.pooled else table_rows.client_rows(trained, cohort) | idle
        self._finish_round(row, clients, evaluate=plan if due else None)

    def _server_step(self, calls: Calls, plan: RoundPlan, cohort: Cohort) -> Trained:
        """The round's calls, in which clients train, and the server's step; how they trained."""
        algorithm, server = self.algorithm, None
        try:
            server = algorithm.one_round(self.server, calls)
        except NoUploadsError as error:
            shortage = str(error) or "no upload arrived whole"
        trained = calls.trained
        assert trained is not None, "every round lets clients train"
        for reason, clients in calls.rejected().items():
            log.warning("round %d: clients %s uploaded %s", plan.round_idx, clients, reason)
        if server is None:
            diverged = [r.client_id for r in trained.reports if r.reason == DIVERGED]
            if diverged and len(diverged) == len(trained.reports):
                raise DivergedError(
                    f"round {plan.round_idx}: all {len(diverged)} clients diverged (NaN or "
                    f"infinity) at lr={plan.lr:g}; lower optimizer.lr or set "
                    f"trainer.gradient_clip_val"
                )
            if not trained.reports:
                shortage = cohort.why_nobody
            log.warning("round %d: %s; the model is unchanged", plan.round_idx, shortage)
            return trained
        if algorithm.record is not None and calls.uploads is not None:
            kept = algorithm.record.rows(self.server, calls.uploads)
            self.engine.site.keep_records(calls.uploads.clients, kept)
        self.server = server
        if not all_finite(self.server):
            raise DivergedError(
                f"round {plan.round_idx}: the server step turned finite uploads into NaN or "
                f"infinity; lower algorithm.server_lr, or other options that scale the step"
            )
        return trained

    def _recalibrate(self, trained: Trained, plan: RoundPlan) -> tuple[int, int]:
        """Measure BatchNorm statistics if enabled; returns the (down, up) bytes of all clients."""
        if not self.recalibrate or trained.uploads is None:
            return 0, 0
        clients = [report.client_id for report in trained.reports]
        self.server, down, up = recalibrate_batchnorm(self.engine.site, self.server, clients, plan)
        return down * len(clients), up * len(clients)

    def _finish_round(
        self, row: Columns, clients: dict[int, Columns], *, evaluate: RoundPlan | None
    ) -> None:
        start = time.perf_counter()
        if evaluate:
            results = self.engine.evaluate(self.server, evaluate, fraction=self.eval_examples)
            self._single_class = [name for name in results if results[name].single_class]
            table_rows.add_evaluation(row, clients, results, self.data.kinds)
            row["time/eval_s"] = time.perf_counter() - start
        self.history.append(row)
        log_row(self.loggers, row)
        self._call_hooks("on_round_end", row, clients)

    def _call_hooks(self, hook: str, *args: object) -> None:
        for method in hooks(self.callbacks, hook, self):
            method(*args)
