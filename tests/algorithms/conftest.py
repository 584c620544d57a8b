"""Federations of softmax regression in double precision, beside the same in NumPy."""

import numpy as np
import pytest
from references import Reference, initial, vector

from flfast.plan import Batching


class Trajectory:
    """Parameters [P] after every round."""

    def __init__(self):
        self.rounds = []

    def on_round_end(self, federation, row, clients):
        self.rounds.append(vector(federation.weights()))


@pytest.fixture
def follow(make_data, make_federation):
    """Run an algorithm, and compare every round's parameters with a paper's equations."""

    def follow(
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
        data = make_data(sizes)
        federation = make_federation(
            data,
            initial(5, 3),
            algorithm=algorithm,
            rounds=rounds,
            lr=lr,
            local_epochs=epochs,
            batching=Batching(batch_size),
            trainer={"precision": "64-true"},
            **options,
        )
        found = Trajectory()
        federation.callbacks = [found]
        federation.run()
        reference = Reference(data, batch_size, epochs, lr)
        cohorts = [federation.cohort(r).clients.tolist() for r in range(1, rounds + 1)]
        start = vector(initial(5, 3).state_dict())
        expected = list(equations(reference, start, cohorts))
        assert len(expected) == rounds
        np.testing.assert_allclose(found.rounds[1:], expected, rtol=tol, atol=tol)
        assert abs(expected[-1] - start).max() > 0.01, "nothing happened"
        return federation

    return follow
