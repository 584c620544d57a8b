"""FedGAMMA against its equations."""

import pytest
from references import control_variates, uphill

from flfast.zoo.algorithms.fedgamma import fedgamma


def make(rho=0.5, server_lr=1.0, momentum=0.0):
    local = {"momentum": momentum, "nesterov": False, "local_optimizer_state": "reset"}
    return fedgamma(rho=rho, server_lr=server_lr, **local)


def dai(rho, server_lr):
    """SCAFFOLD with the gradient uphill."""

    def gradient_of(reference):
        return lambda k, x: lambda w, step: uphill(reference, w, step, rho)

    return control_variates(server_lr, gradient_of)


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "server_lr"), [(-1, 1.0), (2, 0.7)])
def test_trajectories_follow_the_paper(assert_follows, batch_size, server_lr, sampling):
    made, equations = make(0.5, server_lr), dai(0.5, server_lr)
    assert_follows(made, equations, batch_size=batch_size, sampling=sampling)


@pytest.mark.slow  # `test_scaffold.py` has a fast one
def test_it_converges_to_the_optimum(final_gradient):
    """For a small rho, whereas FedSAM keeps the drift of FedAvg."""
    assert final_gradient(make(rho=1e-9)) < 1e-6


def test_optimizers_other_than_sgd_are_refused_by_its_own_name():
    with pytest.raises(ValueError, match=r"algorithm=fedgamma needs .*optimizer=sgd"):
        make(momentum=None)
