"""The model, data, Trainers and client states of one rank, which all engines train with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from flfast.algorithms.contract import Algorithm, Context, Fact, LocalStage, Measure
from flfast.algorithms.contract.downloads import Download, joint_leaves
from flfast.datamodules.batches import WHOLE, RankShare
from flfast.datamodules.client_data import ClientDataModule
from flfast.datamodules.federated import FederatedDataModule
from flfast.distributed.assignment import (
    Assignment,
    assign_cohort,
    assign_to_all,
    assign_to_first,
)
from flfast.distributed.world import ALONE, World
from flfast.engines.measuring import Measuring
from flfast.lit.local_module import LocalModule
from flfast.lit.trainers import Trainers, dtype_of_precision
from flfast.models.adapters.adapted import Adapted
from flfast.state.plan import RoundPlan
from flfast.state.randomness import seed_torch, torch_generator
from flfast.state.store import RESIDUALS, ClientStates, Kept, own_state
from flfast.state.tree import Tree, float_type, tree_map
from flfast.state.weights import dtype_of_module, read_weights


class ClientStart(NamedTuple):
    """The start of a client's local training.

    Attributes:
        context: download, client state, initial weights and learning rate.
        optimizer_state: by parameter name; empty for a new optimizer.
        data: the client's examples, in the plan's batches.
        plan: the client's own.
    """

    context: Context
    optimizer_state: Tree
    data: ClientDataModule
    plan: RoundPlan

    def seed_torch(self, *, others: bool = False) -> None:
        """Seed torch's generators for this local training; see `seed_torch`."""
        data, path = self.data, (self.plan.round_idx, self.data.client_id)
        seed_torch(data.data.seed, "local training", *path, others=others)

    def stage_plan(self, stage: LocalStage) -> RoundPlan:
        """The plan of a stage: with the stage's epochs, and the client's share of all steps."""
        return self.plan.for_stage(stage.epochs).with_work_fraction(self.data.epoch.num_steps)


@dataclass(frozen=True)
class Site:
    """Model, data, Trainers and client states of one rank.

    Attributes:
        module: model, algorithm and local optimizer.
        data: the population, set up.
        trainers: one Trainer per plan, reused for every client.
        states: states of this rank's clients between rounds.
        world: all ranks of the run.
        records: what the server keeps of clients; the same on every rank.
        adapted: the model with its adapter; None if all parameters are trained.
        keeps_residuals: whether clients keep what compression lost of their uploads.
        initial: the model's weights before round 1; empty: those that it has.
    """

    module: LocalModule
    data: FederatedDataModule
    trainers: Trainers
    states: ClientStates
    world: World = ALONE
    records: ClientStates = field(default_factory=ClientStates)
    adapted: Adapted | None = None
    keeps_residuals: bool = False
    initial: Tree = field(default_factory=dict)

    def of(self, algorithm: Algorithm, *, states: ClientStates | None = None) -> "Site":
        """A site with the same model, optimizer and data; without states it gets new ones."""
        module = self.module.of(self.model, algorithm)
        trainers = Trainers(module, self.trainers.make_trainer)
        states = ClientStates() if states is None else states
        return replace(self, module=module, trainers=trainers, states=states)

    @property
    def kept(self) -> Kept:
        """States and records."""
        return Kept(self.states, self.records)

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the module."""
        return self.module.algorithm

    @property
    def model(self) -> nn.Module:
        """The model, which all clients of this rank share one after another."""
        return self.module.model

    @cached_property
    def joint(self) -> Tree:
        """Initial values of the leaves that train beside the model, `{"params", "buffers"}`."""
        return joint_leaves(self.algorithm, self.first_weights)

    @property
    def first_weights(self) -> Tree:
        """Weights that a trial starts from: the initial ones, if the model has their type."""
        known = self.initial
        same = known and float_type(known) == dtype_of_module(self.model)
        return known if same else read_weights(self.model)

    def divides_batches(self, plan: RoundPlan) -> bool:
        """Whether all ranks train every client together, each on a part of every batch."""
        batches = plan.strategy == "ddp" and plan.shard == "batch"
        return self.world.size > 1 and (batches or plan.strategy == "fsdp")

    @property
    def keeps_states(self) -> bool:
        """Whether clients keep anything between rounds."""
        return self.algorithm.stateful or self.keeps_residuals

    def client_state(self, client_id: int, download: Tree) -> Tree:
        """A client's state; in its first round the algorithm's initial one."""
        # A further call of a round shares the states of the algorithm, and may be stateless.
        state = own_state(self.states.get(client_id)) if self.algorithm.stateful else None
        return self.algorithm.client_state(download) if state is None else state

    def residual(self, client_id: int) -> Tree:
        """What compression lost of a client's earlier uploads."""
        state = self.states.get(client_id) if self.keeps_residuals else None
        residuals: Tree = (state or {}).get(RESIDUALS, {})
        return residuals.get(self.algorithm.name, {})

    def keep_state(self, client_id: int, state: Tree, residual: Tree) -> None:
        """Keep a client's new state, and what compression lost of its upload."""
        if self.keeps_residuals:
            before = self.states.get(client_id) or {}
            if not self.algorithm.stateful:  # of a further call
                state = own_state(before) or {}
            residuals = {**before.get(RESIDUALS, {}), self.algorithm.name: residual}
            state = {**state, RESIDUALS: residuals}
        if self.keeps_states:
            self.states.put(client_id, state)

    def keep_records(self, clients: Tensor, rows: Tree) -> None:
        """Replace the server's records of K clients, leaves [K, ...]; every rank does the same."""
        for place, client_id in enumerate(clients.tolist()):
            self.records.put(client_id, tree_map(itemgetter(place), rows))

    def fold(self, broadcast: Tree) -> None:
        """Let the frozen base be what a broadcast makes of it; see `KitFunctions.fold`."""
        if self.algorithm.kit.fold is not None and self.adapted is not None:
            self.adapted.fold(self.algorithm.kit.fold(broadcast))

    def fold_server(self, server: Tree) -> None:
        """Let the frozen base be what a server state makes of it."""
        if self.algorithm.kit.fold is not None:
            self.fold(self.algorithm.broadcast(server))

    def start(self, client_id: int, download: Download, plan: RoundPlan) -> ClientStart:
        """What a client's training starts with: context, optimizer state and batches."""
        algorithm, received = self.algorithm, download(client_id)
        self.fold(received)
        plan = download.plan(client_id, plan)
        state = self.client_state(client_id, received)
        seed, round_idx = self.data.seed, plan.round_idx
        context = Context(
            received,
            state,
            algorithm.start(received, state),
            torch.tensor(plan.lr, dtype=torch.float64),
            partial(_generator, seed, round_idx, client_id),
            facts_of(algorithm, self.data, client_id, plan),
        )
        begin = algorithm.kit.optimizer
        optimizer_state = begin(received, state) if begin else {}
        data = ClientDataModule(
            self.data,
            client_id,
            batching=plan.batching._replace(limit=self.trainers.trainer(plan).train_limit),
            round_idx=round_idx,
            rank_share=self._rank_share if self.divides_batches(plan) else WHOLE,
        )
        return ClientStart(context, optimizer_state, data, plan)

    def measured(
        self, measure: Measure, weights: Tree, client_id: int, context: Context, plan: RoundPlan
    ) -> Context:
        """The context with the sums of a measure; see `Measuring`."""
        trainer = self.trainers.trainer(plan).trainer
        measuring = Measuring(self.model, self.module.task_type, trainer, self.data)
        return measuring(measure, weights, client_id, context)

    @cached_property
    def _rank_share(self) -> RankShare:
        return RankShare(self.world.rank, self.world.size)


def facts_of(
    algorithm: Algorithm, data: FederatedDataModule, client_id: int, plan: RoundPlan
) -> Tree:
    """The facts of a client that an algorithm reads; see `Algorithm.facts`."""
    if not algorithm.facts:
        return {}
    indices = data.train_clients.indices_of(client_id)
    known: dict[Fact, Callable[[], Tensor]] = {
        "examples": lambda: torch.tensor(len(indices)),
        "labels": lambda: torch.bincount(
            data.examples.targets[indices], minlength=data.num_classes
        ),
        "round": lambda: torch.tensor(plan.round_idx),
    }
    # Quotients of integers would have torch's default data type, which engines set differently.
    facts: Tree = {name: known[name]().double() for name in algorithm.facts if name != "public"}
    if "public" in algorithm.facts:
        facts["public"] = data.server_examples(dtype_of_precision(plan.precision))
    return facts


def _generator(seed: int, round_idx: int, client_id: int, purpose: str) -> torch.Generator:
    """The generator that an algorithm's functions draw from."""
    return torch_generator(seed, f"algorithm: {purpose}", round_idx, client_id)


def assign(
    site: Site, cohort: Sequence[int], plan: RoundPlan, flops: np.ndarray | None
) -> Assignment:
    """Which clients of a cohort the site's rank trains.

    `flops` are of a forward pass of each member of a family of models, float64 [M]; None: all
    clients have the same model.
    """
    if site.divides_batches(plan):
        return assign_to_all(cohort)
    if plan.strategy != "ddp":
        return assign_to_first(cohort, site.world)
    sizes = [len(site.data.train_clients.indices_of(k)) for k in cohort]
    if flops is not None and site.data.kinds is not None:
        # The server's examples are those of one client more.
        costs = np.append((flops / flops.min())[site.data.kinds.of], 1.0)
        sizes = [round(size * costs[k]) for size, k in zip(sizes, cohort, strict=True)]
    return assign_cohort(cohort, sizes, site.world, stateful=site.keeps_states)


def reference_name(call: str) -> str:
    """Name of the call on the server's own examples that corresponds to a call of clients."""
    return f"reference {call}"


def reference_site(site: Site, algorithm: Algorithm) -> Site:
    """A site where the server does on its own examples what a client does in a call.

    Its upload is whole and weighs 1. It keeps no states: those that it makes are dropped.
    """
    whole = replace(algorithm, parts={}, weighting="uniform")
    return replace(site, keeps_residuals=False).of(whole)
