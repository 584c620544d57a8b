"""SCAFFOLD against its equations, its limits, and its convergence to the optimum."""

from functools import partial

import pytest
import torch
from references import control_variates, initial
from sampling import others_slow

from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.scaffold import scaffold
from flfast.state.plan import Batching
from flfast.state.tree import num_bytes

SGD = {"momentum": 0.0, "nesterov": False}


def make(server_lr=1.0, **local):
    return scaffold(server_lr=server_lr, local_optimizer_state="reset", **{**SGD, **local})


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "server_lr"), [(-1, 1.0), (2, 0.7)])
def test_trajectories_follow_the_paper(assert_follows, batch_size, server_lr, sampling):
    assert_follows(
        make(server_lr), control_variates(server_lr), batch_size=batch_size, sampling=sampling
    )


def run(make_data, make_federation, algorithm, *, sizes=(4, 9, 6), **options):
    federation = make_federation(
        make_data(sizes),
        initial(5, 3),
        algorithm=algorithm,
        trainer={"precision": "64-true"},
        **{"batching": Batching(-1), "eval_every": 1000, **options},
    )
    federation.run()
    return federation


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_with_one_client_it_is_sgd(make_data, make_federation, momentum):
    """With one client both control variates are equal, so there is no correction."""
    options = {
        "sizes": [8],
        "rounds": 4,
        "batching": Batching(3),
        "optimizer": partial(torch.optim.SGD, momentum=momentum),
    }
    found = run(make_data, make_federation, make(momentum=momentum), **options)
    plain = run(make_data, make_federation, fedavg(weighting="uniform"), **options)
    torch.testing.assert_close(found.weights(), plain.weights())


@pytest.mark.parametrize("momentum", others_slow([0.0, 0.8], [0.8]))
def test_it_converges_to_the_optimum(final_gradient, momentum):
    assert final_gradient(make(momentum=momentum), momentum=momentum) < 1e-6


def test_fedavg_does_not_converge_to_the_optimum(final_gradient):
    assert final_gradient(fedavg(weighting="uniform")) > 1e-3


def test_control_variates_are_counted_as_communication(make_data, make_federation):
    federation = run(make_data, make_federation, make())
    sent = 3 * 2 * num_bytes(federation.initial["params"])
    assert federation.history[1]["comm/up_bytes"] == sent
    assert federation.history[1]["comm/down_bytes"] == sent


def test_the_mean_of_the_control_variates_is_the_servers(make_data, make_federation):
    federation = run(make_data, make_federation, make(), rounds=3)
    controls = [federation.engine.site.states.get(k)["control"]["weight"] for k in range(3)]
    torch.testing.assert_close(sum(controls) / 3, federation.server["control"]["weight"])


def test_a_learning_rate_of_zero_changes_nothing(make_data, make_federation):
    federation = run(make_data, make_federation, make(), lr=0.0)
    assert federation.history[-1]["cohort/rejected"] == 0
    assert not federation.server["control"]["weight"].any()
