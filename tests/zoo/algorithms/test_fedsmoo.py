"""FedSMOO against its equations."""

import numpy as np
import pytest
from algorithms_by_name import federation_of, run
from engine_runs import mlp
from references import dynamic_regulariser

from flfast.zoo.algorithms.fedsmoo import fedsmoo


class Ascents:
    """mu_k of all clients, and s of the round; both change while FedDyn's equations run."""

    def __init__(self, reference, rho):
        self.reference, self.rho, self.size = reference, rho, None
        self.sent = []

    def begin(self, w):
        """A round begins: the server combines what clients sent in the last one."""
        if self.size is None:
            self.size = len(w)
            self.mu = np.zeros((self.reference.num_clients, self.size))
            self.s = np.zeros(self.size)
        if self.sent:
            mean = np.mean([self.mu[k] - self.last[k] for k in self.sent], axis=0)
            self.s = self.rho * mean / np.linalg.norm(mean)
        self.sent, self.last = [], {}

    def gradient(self, k, w, step):
        v = self.reference.gradient(w, step) - self.mu[k] - self.s
        s_k = self.rho * v / np.linalg.norm(v)
        self.mu[k] += s_k - self.s
        self.last[k] = s_k
        return self.reference.gradient(w + s_k, step)


def sun(rho, alpha):
    """FedDyn, with the gradients of `Ascents`."""

    def equations(reference, w, cohorts):
        ascents = Ascents(reference, rho)

        def gradient_of(k, _):
            ascents.sent.append(k)
            return lambda w, step: ascents.gradient(k, w, step)

        def rounds():
            for cohort in cohorts:
                if cohort:
                    ascents.begin(w)
                yield cohort

        yield from dynamic_regulariser(alpha, lambda _: gradient_of)(reference, w, rounds())

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 2])
def test_trajectories_follow_the_paper(assert_follows, batch_size, sampling):
    options = {"rho": 0.5, "alpha": 0.4}
    assert_follows(fedsmoo(**options), sun(**options), batch_size=batch_size, sampling=sampling)


def test_the_servers_ascent_has_length_rho(make_data, make_federation):
    federation = federation_of(
        *(make_data, make_federation, "fedsmoo", mlp()),
        rounds=2,
        local_epochs=2,
        algorithm={"rho": 0.3},
    )
    found = run(federation).server["ascent"].values()
    assert sum(float(leaf.square().sum()) for leaf in found) == pytest.approx(0.3**2)


@pytest.mark.slow
def test_it_converges_to_the_optimum(final_gradient):
    assert final_gradient(fedsmoo(alpha=1.0, rho=1e-9)) < 1e-6
