"""Runs of a federation with different engines, and their comparison."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.engines.auto import AutoTraining
from flfast.engines.eager import EagerTraining
from flfast.engines.engine import Engine
from flfast.engines.fine_tuning import FineTuning
from flfast.engines.fused.training import FusedTraining
from flfast.engines.site import reference_name, reference_site
from flfast.lit.trainers import Trainers


class Direct:
    """Stands for `CudaGraphs` on the CPU: replaying runs again."""

    failures = 0

    def warm_up(self, run):
        run()

    def record(self, run):
        return run


class Replaying(FusedTraining):
    """Records and replays programs on the CPU, as CUDA graphs do on a GPU."""

    def programs(self, plan):
        found = super().programs(plan)
        for programs in found.client.programs:
            programs.recorder = programs.recorder or Direct()
        return found

    def recordings(self):
        """Number of recordings; asserts that every program could be recorded."""
        made = 0
        stages = (own for found in self._programs.values() for own in found.client.programs)
        for programs in stages:
            for program in programs._programs.values():
                assert program._recorder is programs.recorder
                for recording in program._recordings.values():
                    made += sum(own.replay is not None for own in recording._steps.values())
        return made


class OperatorByOperator(FusedTraining):
    """Runs programs without CUDA graphs on a GPU."""

    def programs(self, plan):
        found = super().programs(plan)
        for programs in found.client.programs:
            programs.recorder = None
        return found


def net(*layers):
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    return nn.Sequential(*(make() for make in layers))


def mlp(*between):
    return net(lambda: nn.Linear(5, 8), nn.Tanh, *between, lambda: nn.Linear(8, 3))


def with_batchnorm():
    return mlp(lambda: nn.BatchNorm1d(8))


def engine_of(federation, training=AutoTraining, *, stack="auto", finetune_epochs=0):
    """The federation's engine with another implementation of local training."""
    before = federation.engine

    options = {} if training is EagerTraining else {"decided": {}, "stack": stack}

    def make(site):
        return training(site, **options)

    site = replace(before.site, trainers=anew(before.site.trainers, before.site.module))
    finetune = None
    if finetune_epochs:
        own = site.of(Algorithm(name="fine-tuning"))
        finetune = FineTuning(own, make(own), finetune_epochs)
    all_calls = site.algorithm.calls
    sites = {local.name: site.of(local, states=site.states) for local in all_calls}
    calls = {name: (own, make(own)) for name, own in sites.items()}
    if before.channel.aggregation.trusted:
        own = reference_site(site, site.algorithm)
        calls[reference_name(site.algorithm.name)] = own, make(own)
    return Engine(site, make(site), channel=before.channel, calls=calls, finetune=finetune)


def anew(trainers, module):
    """Trainers that have not run yet."""
    return Trainers(module, trainers.make_trainer)


def chosen(federation, **changes):
    plan = federation.plans(1, [])._replace(**changes)
    return engine_of(federation).choose(plan)


def ran(federation, engine, *, stack="auto"):
    federation.engine = engine_of(federation, engine, stack=stack)
    federation.run()
    return federation


def assert_engines_agree(make, *, tol=1e-9, loss_tol=1e-5, engine=FusedTraining, stack="auto"):
    """Compare the engine with the eager one; returns its federation.

    Args:
        make: returns a new federation at each call.
        tol: relative and absolute tolerance.
        loss_tol: relative tolerance of losses, and of what was sent.
        engine: to compare.
        stack: clients per program.
    """
    eager, fused = ran(make(), EagerTraining), ran(make(), engine, stack=stack)
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
    assert left == [pytest.approx(row, rel=loss_tol) for row in right]
    return fused


def flat(weights):
    return {**weights["params"], **weights["buffers"]}
