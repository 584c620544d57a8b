"""Solves random problems in different ways, which must not change the numbers."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
from adversaries import COMPRESSIONS, adversarial_channel
from problems import OPTIMIZERS, Problem, make_algorithm, make_data, make_model
from uneven import partial_work, uneven

from flfast.channel.channel import Channel
from flfast.distributed.world import ALONE, World
from flfast.engines.eager import EagerTraining
from flfast.engines.engine import Engine
from flfast.engines.fused.training import FusedTraining
from flfast.engines.site import Site, reference_name, reference_site
from flfast.federation.loop import Federation
from flfast.federation.paces.asynchronous import asynchronous
from flfast.federation.paces.buffered import buffered
from flfast.federation.paces.sync import sync
from flfast.federation.samplers.cohort import cohort_size
from flfast.federation.samplers.uniform import uniform
from flfast.lit.local_module import LocalModule
from flfast.lit.strategies.dp import DataParallelStrategy  # noqa: F401 - registers itself
from flfast.lit.trainers import Trainers
from flfast.state.plan import RoundPlan
from flfast.state.store import ClientStates
from flfast.state.tree import Tree
from flfast.state.weights import read_weights

ENGINES = {
    "eager": EagerTraining,
    "fused": partial(FusedTraining, decided={}, stack=1),
    "stacked": partial(FusedTraining, decided={}, stack=3),
}
STALE = {"discount": "polynomial", "strength": None, "patience": None}
PACES = {
    "rounds": lambda cohort: {},
    "deadline": lambda cohort: {
        "make_pace": partial(sync, deadline=8.0, keep_first=max(1, cohort - 1)),
        "devices": partial(uneven, hazard=0.02),
        "work": partial_work,
    },
    "buffered": lambda cohort: {
        "make_pace": partial(buffered, buffer=1 + cohort // 2, **STALE),
        "devices": partial(uneven, hazard=0.02, available=0.7),
        "work": partial_work,
    },
    "async": lambda cohort: {
        "make_pace": partial(asynchronous, mixing=0.6, **STALE),
        "devices": uneven,
    },
}
"""Number of clients in a cohort -> what a federation is made with."""
SINGLE, DP = ("single", "clients"), ("dp", "clients")
CLIENTS, BATCH = ("ddp", "clients"), ("ddp", "batch")


@dataclass(frozen=True)
class Way:
    """How a problem is executed.

    Attributes:
        engine: key of `ENGINES`.
        size: world size; 1 is the calling process.
        strategies: (strategy, shard) of the rounds, repeated cyclically.
    """

    engine: str = "eager"
    size: int = 1
    strategies: tuple[tuple[str, str], ...] = (SINGLE,)


PLAIN = Way()


@dataclass
class Solution:
    """The outcome of a run, on one rank or merged over all ranks.

    Attributes:
        server: leaves of the server state by path.
        states: leaves of the client states by path, by client.
        rows: row of `metrics.csv` of every round.
        clients: rows of `clients.csv` of every round, by client.
        cohorts: (clients, dropped) of every round.
        seen: (round, client, step, batch, rank) -> examples, by their first feature.
    """

    server: dict[str, np.ndarray]
    states: dict[int, dict[str, np.ndarray]]
    rows: list[dict[str, float]]
    clients: list[dict[int, dict[str, Any]]]
    cohorts: list[tuple[list[int], list[int]]]
    seen: dict[tuple[int, ...], list[float]]

    def steps(self) -> dict[tuple[int, ...], list[float]]:
        """(round, client, step) -> examples of the local step, in order."""
        steps: dict[tuple[int, ...], list[float]] = {}
        for key in sorted(self.seen):
            steps.setdefault(key[:3], []).extend(self.seen[key])
        return steps


@dataclass
class Recorder(L.Callback):
    """Records cohorts, the examples of every local step, and the rows of clients."""

    rank: int
    round_idx: int = 0
    clients: list[dict[int, dict[str, Any]]] = field(default_factory=list)
    cohorts: list[tuple[list[int], list[int]]] = field(default_factory=list)
    seen: dict[tuple[int, ...], list[float]] = field(default_factory=dict)

    def on_round_start(self, federation, plan, cohort):
        self.round_idx = plan.round_idx
        self.cohorts.append((cohort.clients.tolist(), cohort.dropped.tolist()))

    def on_train_start(self, trainer, module):
        self.num_batches = 0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        client_id, step = trainer.datamodule.client_id, trainer.global_step
        key = (self.round_idx, client_id, step, self.num_batches, self.rank)
        self.num_batches += 1
        if batch.rank_factor and self.round_idx:  # before round 1, sizes of messages are measured
            self.seen[key] = batch.inputs.flatten(1)[:, 0].tolist()

    def on_round_end(self, federation, row, clients):
        self.clients.append(clients)


def solve(problem: Problem, way: Way, world: World = ALONE) -> Solution:
    """Run a problem; returns this rank's part of the outcome."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(world.rank)
        federation = _federation(problem, way, world, recorder, Path(folder))
        federation.run()
    states = federation.engine.site.states
    found = {k: states.get(k) for k in range(len(problem.sizes))}
    return Solution(
        server=_flat(federation.server),
        states={k: _flat(state) for k, state in found.items() if state is not None},
        rows=[_comparable(row) for row in federation.history],
        clients=recorder.clients,
        cohorts=recorder.cohorts,
        seen=recorder.seen,
    )


def _federation(
    problem: Problem, way: Way, world: World, recorder: Recorder, folder: Path
) -> Federation:
    model, data = make_model(problem), make_data(problem)
    algorithm = make_algorithm(problem, model)
    module = LocalModule(
        model,
        algorithm,
        OPTIMIZERS[problem.optimizer],
        data.examples.task_type,
        freeze_batchnorm=problem.batchnorm == "frozen",
    )
    channel = adversarial_channel(problem.adversary, data) if problem.adversary else Channel()
    if problem.compression:
        channel = replace(
            channel, seed=problem.seed, compression=COMPRESSIONS[problem.compression]
        )
    value, kind = problem.clip or (None, None)

    def make_trainer(plan):
        devices, strategy = 1, "auto"
        if plan.strategy == "dp":
            devices, strategy = 2, "dp"
        elif plan.strategy == "ddp" and plan.shard == "batch" and world.size > 1:
            devices, strategy = world.size, "ddp"
        return L.Trainer(
            accelerator="cpu",
            devices=devices,
            strategy=strategy,
            precision=plan.precision,
            gradient_clip_val=value,
            gradient_clip_algorithm=kind,
            limit_train_batches=problem.limit,
            limit_val_batches=0,
            callbacks=[recorder]
            if way.engine == "eager"
            else [],  # others have no steps of single clients
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )

    trainers, keeps = Trainers(module, make_trainer), channel.compression.feedback
    site = Site(module, data, trainers, ClientStates(), world, keeps_residuals=keeps)
    make, calls = ENGINES[way.engine], {}
    if channel.aggregation.trusted:
        own = reference_site(site, algorithm)
        calls[reference_name(algorithm.name)] = own, make(own)
    engine = Engine(site, make(site), channel=channel, calls=calls)
    cohort = cohort_size(len(data.candidates), fraction=problem.fraction, count=problem.count)
    return Federation(
        **PACES[problem.pace](cohort),
        algorithm=algorithm,
        engine=engine,
        data=data,
        sampler=partial(
            uniform, fraction=problem.fraction, count=problem.count, dropout=problem.dropout
        ),
        plans=lambda round_idx, history: _plan(problem, way, round_idx),
        initial=read_weights(model),
        rounds=problem.rounds,
        eval_every=problem.rounds,
        seed=problem.seed,
        recalibrate=problem.batchnorm == "recalibrate",
        callbacks=[recorder],
        run_dir=folder,
    )


def _plan(problem: Problem, way: Way, round_idx: int) -> RoundPlan:
    strategy, shard = way.strategies[(round_idx - 1) % len(way.strategies)]
    return RoundPlan(
        round_idx=round_idx,
        phase=0,
        lr=problem.lr / round_idx,
        batching=problem.batching,
        local_epochs=problem.local_epochs,
        local_steps=problem.local_steps,
        strategy=strategy,
        shard=shard,
        devices="cpu",
        precision=problem.precision,
    )


def _flat(tree: Tree, prefix: str = "") -> dict[str, np.ndarray]:
    flat = {}
    for name, leaf in tree.items():
        path = f"{prefix}{name}"
        flat.update(_flat(leaf, f"{path}/") if isinstance(leaf, dict) else {path: leaf.numpy()})
    return flat


def _comparable(row: Mapping[str, Any]) -> dict[str, float]:
    # Only plans and times may differ between ways.
    return {
        name: value
        for name, value in row.items()
        if not name.startswith(("plan/", "time/")) and "per_s" not in name
    }


def merged(parts: Sequence[Solution]) -> Solution:
    """Merge the solutions of all ranks, after checking that they are bitwise equal.

    Every rank must hold the states of its own clients only.
    """
    first, size = parts[0], len(parts)
    for rank, part in enumerate(parts):
        assert part.server.keys() == first.server.keys()
        for name, leaf in part.server.items():
            np.testing.assert_array_equal(leaf, first.server[name], err_msg=f"{name}, rank {rank}")
        assert repr((part.rows, part.clients)) == repr((first.rows, first.clients))
        assert part.cohorts == first.cohorts
        assert all(client % size == rank for client in part.states), (
            "states stay on their owner ranks"
        )
    states = {k: state for part in parts for k, state in part.states.items()}
    seen = {key: examples for part in parts for key, examples in part.seen.items()}
    return Solution(first.server, states, first.rows, first.clients, first.cohorts, seen)


def assert_same(found: Solution, expected: Solution, problem: Problem) -> None:
    """Compare cohorts, examples of local steps, states and rows."""
    single = problem.precision == "32-true"
    assert found.cohorts == expected.cohorts
    assert found.steps() == expected.steps() or not found.seen
    close = partial(
        _assert_close,
        tolerance=1e-5 if single else 1e-9,
        rounding=1e-7 if single else 1e-14,
    )
    close(found.server, expected.server)
    assert found.states.keys() == expected.states.keys()
    for client, state in expected.states.items():
        close(found.states[client], state)
    # Predictions are float32 in any precision.
    numbers = 1e-5 if single else 1e-6
    _assert_rows(dict(enumerate(found.rows)), dict(enumerate(expected.rows)), numbers)
    for clients, expected_clients in zip(found.clients, expected.clients, strict=True):
        _assert_rows(clients, expected_clients, numbers)


def _assert_rows(
    found: Mapping[int, Mapping[str, Any]],
    expected: Mapping[int, Mapping[str, Any]],
    tolerance: float,
) -> None:
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        texts = {name: value for name, value in row.items() if isinstance(value, str)}
        assert {name: found[key][name] for name in texts} == texts
        numbers = {name: value for name, value in row.items() if name not in texts}
        others = {name: value for name, value in found[key].items() if name not in texts}
        assert others == pytest.approx(numbers, rel=tolerance, abs=1e-7, nan_ok=True)


def _assert_close(
    found: dict[str, np.ndarray],
    expected: dict[str, np.ndarray],
    *,
    tolerance: float,
    rounding: float,
) -> None:
    """Compare with a tolerance relative to the largest entry of each leaf, plus `rounding`."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        atol = tolerance * np.abs(value).max(initial=0.0) + rounding
        np.testing.assert_allclose(found[name], value, rtol=0, atol=atol, err_msg=name)
