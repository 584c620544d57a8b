"""Federations in double precision, with an algorithm by the name of its file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from engine_runs import ran
from hydra.utils import instantiate
from omegaconf import OmegaConf
from references import Reference, vector
from sampling import ZOO

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.engines.eager import EagerTraining
from flfast.lit.batchnorm import batchnorm_weights
from flfast.state.injection import call_with
from flfast.state.plan import Batching
from flfast.state.weights import read_weights

CONF = Path(__file__).parents[1] / "conf" / "algorithm"
# Options that follow the rest of a run's config, of which there is none here.
FOLLOWED = {
    "momentum": 0.0,
    "nesterov": False,
    "weight_decay": 0.0,
    "bn": "aggregate",
    "local_optimizer_state": "reset",
    "local_steps": None,
    "clip_norm": None,
}
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))
CORE = [name for name in NAMES if "flfast.zoo." not in (CONF / f"{name}.yaml").read_text("utf-8")]
SAMPLE = [*CORE, *ZOO]
"""What README's test command runs of tests that are about each algorithm."""


def algorithm_of(name, model, *, num_clients=3, num_public=6, common=None, **options):
    """The algorithm that `algorithm=NAME` with options builds for a model and clients."""
    config = OmegaConf.load(CONF / f"{name}.yaml")
    followed = {
        key: value for key, value in FOLLOWED.items() if OmegaConf.is_interpolation(config, key)
    }
    config = OmegaConf.merge(config, {**followed, **options})
    made = instantiate(config)
    if isinstance(made, Algorithm):
        return made
    initial = read_weights(model)
    batchnorm = batchnorm_weights(model, initial)
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    offers = {"initial": initial, "batchnorm": batchnorm, "common": common, "members": (initial,)}
    offers["frozen"] = frozen
    numbers = {"num_clients": num_clients, "num_public": num_public, "num_classes": 3}
    return call_with(made, **offers, **numbers, seed=0)


def federation_of(make_data, make_federation, name, model, *, sizes=(6, 3, 1), **options):
    """A federation in double precision.

    Args:
        algorithm: options of the algorithm.
        fields: fields of the algorithm to replace, by name; a function gets the algorithm.
    """
    asked, given = options.pop("server_examples", None), options.pop("algorithm", {})
    num_public = 6 if asked is None else asked
    algorithm = algorithm_of(name, model, num_clients=len(sizes), num_public=num_public, **given)
    needed = algorithm.server_calls or "public" in algorithm.facts
    fields = {n: made(algorithm) for n, made in options.pop("fields", {}).items()}
    data = make_data(
        sizes,
        split=options.pop("split", (0.0, 0.0)),
        num_test=6,
        server_examples=num_public if needed or asked else 0,
    )
    federation = make_federation(
        data,
        model,
        algorithm=replace(algorithm, **fields),
        trainer={"precision": "64-true", **options.pop("trainer", {})},
        batching=options.pop("batching", Batching(-1)),
        eval_every=options.pop("eval_every", 99),
        **options,
    )
    plans = federation.plans
    federation.plans = lambda r, h: plans(r, h)._replace(precision="64-true")
    return federation


def run(federation, engine=EagerTraining, stack="auto"):
    return ran(federation, engine, stack=stack)


class Outcomes:
    """What `of(federation)` gives before round 1 and after every round."""

    def __init__(self, of):
        self.rounds, self._of = [], of

    def on_round_end(self, federation, row, clients):
        self.rounds.append(self._of(federation))


def assert_rounds_follow(
    federation, of, equations, *, tol=1e-9, engine=EagerTraining, stack="auto"
):
    """Run a federation, and compare what it has after every round with equations.

    Args:
        federation: with one plan for all rounds.
        of: (federation) -> arrays, tensors and numbers, in dicts, lists and tuples.
        equations: (`Reference`, what `of` gives before round 1, cohorts) -> the same, by round.
        tol: relative and absolute tolerance.
        engine: of the run; None is the federation's own.
        stack: clients per program.

    Returns:
        What the equations gave after each round.
    """
    found, plan = Outcomes(of), federation.plans(1, [])
    federation.callbacks = [*federation.callbacks, found]
    federation.run() if engine is None else run(federation, engine, stack)
    cohorts = [federation.cohort(r).clients.tolist() for r in range(1, federation.rounds + 1)]
    reference = Reference(federation.data, plan.batching.batch_size, plan.local_epochs, plan.lr)
    expected = list(equations(reference, found.rounds[0], cohorts))
    assert len(expected) == federation.rounds
    for left, right in zip(found.rounds[1:], expected, strict=True):
        assert_close(left, right, tol)
    return expected


def assert_close(found, expected, tol):
    """Compare arrays, tensors and numbers in dicts, lists and tuples."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_close(found[name], value, tol)
    elif isinstance(expected, list | tuple):
        for left, right in zip(found, expected, strict=True):
            assert_close(left, right, tol)
    else:
        left, right = (np.asarray(torch.as_tensor(value).detach()) for value in (found, expected))
        assert left.shape == right.shape
        np.testing.assert_allclose(left, right, rtol=tol, atol=tol)


def server_vector(federation):
    """Parameters [P] of the server's model, where that is `initial`."""
    return vector(federation.weights())


def personal_vectors(federation):
    """Parameters [N, P] of the personal models of `initial`."""
    engine, num = federation.engine, federation.population
    weights = [engine.personal_weights(federation.server, k) for k in range(num)]
    return np.stack([vector(found["params"]) for found in weights])


def states_of(federation, of):
    """`of(state)` of every client that has a state, by client."""
    states = federation.engine.site.states
    return {k: of(states.get(k)) for k in states.clients()}


def personal_of(federation, k):
    """Parameters of client k's personal model."""
    engine = federation.engine
    broadcast = federation.algorithm.broadcast(federation.server)
    client = engine.site.client_state(k, broadcast)
    return federation.algorithm.personal(broadcast, client)["params"]


def server_of(federation):
    return federation.server["params"]


def assert_leaves_close(found, expected, tol=1e-12):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            torch.as_tensor(found[name]),
            torch.as_tensor(value),
            rtol=tol,
            atol=tol,
            check_dtype=False,
            msg=lambda text, name=name: f"{name}: {text}",
        )
