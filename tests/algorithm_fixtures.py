"""Federations of softmax regression in double precision, and the same in NumPy."""

from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from algorithms_by_name import assert_rounds_follow, server_vector
from engine_runs import ran
from references import Reference, initial, vector

from flfast.channel.sides import ServerSide
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

TESTS = Path(__file__).parent
FOLDERS = {TESTS / "algorithms", TESTS / "zoo" / "algorithms"}


# Arguments of which the values are algorithms, or parts of one with equations of their own.
KINDS = {"algorithm", "case", "equations", "name", "options", "share"}


def pytest_collection_modifyitems(items):
    """Mark as slow most runs that follow a paper: one of each algorithm is fast.

    It is the last one, which often has small batches and few clients. `test_contract.py` compares
    the engines; a fused run stays where there is no other.
    """
    followed = defaultdict(list)
    for item in items:
        follows = item.path.parent in FOLDERS and "_follow_the_" in item.name
        if follows and hasattr(item, "callspec") and item.get_closest_marker("slow") is None:
            followed[item.path, item.originalname].append(item)
    for cases in followed.values():
        eager = [item for item in cases if is_eager(item)]
        chosen = {kind_of(item): item for item in eager or cases}
        for item in set(cases) - set(chosen.values()):
            item.add_marker("slow")


def kind_of(item):
    return tuple(repr(value) for name, value in item.callspec.params.items() if name in KINDS)


def is_eager(item):
    return item.callspec.params.get("engine") is not FusedTraining


@pytest.fixture
def sent_uploads(monkeypatch):
    """The uploads that the server decodes, in the order of arrival."""
    found, decode = [], ServerSide.decode

    def recorded(server, sender, sent):
        found.append(decode(server, sender, sent))
        return found[-1]

    monkeypatch.setattr(ServerSide, "decode", recorded)
    return found


@pytest.fixture
def assert_follows(make_data, make_federation):
    """Run an algorithm, and compare the parameters after every round with the equations."""

    def assert_follows(
        algorithm,
        equations,
        *,
        sizes=(3, 8, 1, 6),
        batch_size=-1,
        epochs=3,
        lr=0.1,
        rounds=4,
        tol=1e-9,
        **options,
    ):
        """`equations(reference, w, cohorts)` yields parameters [P] after each round."""
        federation = make_federation(
            make_data(sizes),
            initial(5, 3),
            algorithm=algorithm,
            rounds=rounds,
            lr=lr,
            local_epochs=epochs,
            batching=Batching(batch_size),
            trainer={"precision": "64-true"},
            **options,
        )
        start = vector(initial(5, 3).state_dict())
        expected = assert_rounds_follow(federation, server_vector, equations, tol=tol, engine=None)
        assert abs(expected[-1] - start).max() > 0.01, "nothing happened"
        return federation

    return assert_follows


@pytest.fixture
def final_gradient(make_data, make_federation):
    """Largest component of the global objective's gradient at the end of a run."""

    def final_gradient(algorithm, *, momentum=0.0, decay=0.2):
        federation = make_federation(
            make_data([4, 9, 6]),
            initial(5, 3),
            algorithm=algorithm,
            rounds=60,
            eval_every=60,
            lr=0.3 * (1 - momentum),
            local_epochs=10,
            batching=Batching(-1),
            optimizer=partial(torch.optim.SGD, momentum=momentum, weight_decay=decay),
            trainer={"precision": "64-true"},
        )
        ran(federation, FusedTraining)
        reference, w = Reference(federation.data, -1, 1, 0.3), vector(federation.weights())
        steps = [reference.steps(k, 1)[0] for k in range(reference.num_clients)]
        return abs(np.mean([reference.gradient(w, s) for s in steps], axis=0) + decay * w).max()

    return final_gradient
