"""Runs of a federation with different engines, and their comparison."""

import pytest
import torch
from torch import nn

from flfast.engines.auto import AutoEngine
from flfast.engines.base import fine_tuning
from flfast.engines.eager import EagerEngine
from flfast.engines.fused.fused import FusedEngine
from flfast.engines.fused.graph.cuda_graphs import Direct
from flfast.state.store import ClientStates


class Replaying(FusedEngine):
    """Records and replays programs on the CPU, as CUDA graphs do on a GPU."""

    def _program(self, plan):
        program = super()._program(plan)
        for programs in program._client.programs:
            programs.recorder = programs.recorder or Direct()
        return program

    def recordings(self):
        """Number of recordings; asserts that every program could be recorded."""
        made = 0
        stages = (own for program in self._programs.values() for own in program._client.programs)
        for programs in stages:
            for program in programs._programs.values():
                assert program._recorder is programs.recorder
                for recording in program._recordings.values():
                    made += sum(own.replay is not None for own in recording._steps.values())
        return made


class OperatorByOperator(FusedEngine):
    """Runs programs without CUDA graphs on a GPU."""

    def _program(self, plan):
        program = super()._program(plan)
        for programs in program._client.programs:
            programs.recorder = None
        return program


def net(*layers):
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    return nn.Sequential(*(make() for make in layers))


def mlp(*between):
    return net(lambda: nn.Linear(5, 8), nn.Tanh, *between, lambda: nn.Linear(8, 3))


def with_batchnorm():
    return mlp(lambda: nn.BatchNorm1d(8))


def engine_of(federation, engine=AutoEngine, *, stack="auto", finetune_epochs=0):
    """An engine of another kind with the parts of the federation's engine."""
    eager = federation.engine
    options = {} if engine is EagerEngine else {"stack": stack}

    def make(module, states):
        make_trainer = eager.trainers._make_trainer
        return engine(module, eager.data, make_trainer, states, eager.world, **options)

    made = make(eager.module, eager.states)
    if finetune_epochs:
        made.evaluate_finetuned(make(fine_tuning(eager.module), ClientStates()), finetune_epochs)
    return made


def chosen(federation, **changes):
    plan = federation.plans(1, [])._replace(**changes)
    return engine_of(federation).choose(plan)


def ran(federation, engine, *, stack="auto"):
    federation.engine = engine_of(federation, engine, stack=stack)
    federation.run()
    return federation


def assert_engines_agree(make, *, tol=1e-9, engine=FusedEngine, stack="auto"):
    """Compare the engine with the eager one; returns its federation.

    Args:
        make: returns a new federation at each call.
        tol: relative and absolute tolerance.
        engine: to compare.
        stack: clients per program.
    """
    eager, fused = ran(make(), EagerEngine), ran(make(), engine, stack=stack)
    assert fused.engine.choose(fused.plans(1, [])) == "fused"
    found, expected = fused.weights(), eager.weights()
    assert any(not torch.equal(expected[n], w) for n, w in flat(eager.initial).items())
    torch.testing.assert_close(found, expected, rtol=tol, atol=tol)
    left, right = (
        [
            {k: v for k, v in row.items() if k.startswith(("train/loss", "comm/", "cohort/"))}
            for row in federation.history
        ]
        for federation in (fused, eager)
    )
    assert left == [pytest.approx(row, rel=1e-5) for row in right]
    return fused


def flat(weights):
    return {**weights["params"], **weights["buffers"]}
