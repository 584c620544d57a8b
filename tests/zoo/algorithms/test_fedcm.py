"""FedCM against its equations, and the cases in which it equals FedAvg."""

from functools import partial

import numpy as np
import pytest
import torch
from references import initial

from flfast.state.plan import Batching
from flfast.state.tree import num_bytes
from flfast.zoo.algorithms.fedcm import fedcm

SGD = {"momentum": 0.0, "nesterov": False}


def make(alpha=0.1, server_lr=1.0, weighting="uniform", **local):
    return fedcm(
        alpha=alpha,
        server_lr=server_lr,
        weighting=weighting,
        local_optimizer_state="reset",
        **{**SGD, **local},
    )


def xu(alpha, server_lr, weighting="uniform"):
    """Algorithm 2 of Xu et al. 2021; K is the mean number of steps of the cohort."""

    def equations(reference, x, cohorts):
        delta = np.zeros_like(x)
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                models, nums = [], []
                for k in cohort:
                    y, steps = x.copy(), reference.steps(k, round_idx)
                    for step in steps:
                        v = alpha * reference.gradient(y, step) + (1 - alpha) * delta
                        y = y - reference.lr * v
                    models.append(y)
                    nums.append(len(steps))
                shares = [reference.size(k) if weighting == "samples" else 1 for k in cohort]
                num = np.average(nums, weights=shares)
                delta = np.average([x - y for y in models], axis=0, weights=shares)
                delta = delta / (reference.lr * num)
                eta_g = server_lr * reference.lr * num
                x = x - eta_g * delta
            yield x

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(
    ("batch_size", "server_lr", "weighting"),
    [(-1, 1.0, "uniform"), (2, 0.7, "uniform"), (2, 1.0, "samples")],
)
def test_trajectories_follow_the_paper(assert_follows, batch_size, server_lr, weighting, sampling):
    assert_follows(
        make(0.3, server_lr, weighting),
        xu(0.3, server_lr, weighting),
        batch_size=batch_size,
        sampling=sampling,
    )


def run(make_data, make_federation, algorithm, *, lr=0.1, **options):
    """A run; `lr` is a number, or one for each round."""
    federation = make_federation(
        make_data((4, 9, 6)),
        initial(5, 3),
        algorithm=algorithm,
        trainer={"precision": "64-true"},
        **{"batching": Batching(2), "rounds": 3, "local_epochs": 2, **options},
    )
    plans, rates = federation.plans, np.broadcast_to(lr, federation.rounds).tolist()
    federation.plans = lambda r, history: plans(r, history)._replace(lr=rates[r - 1])
    federation.run()
    return federation


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_delta_is_the_mean_gradient_also_with_momentum(make_data, make_federation, momentum):
    """With tiny steps all gradients are those at the start; Delta is alpha times their mean."""
    federation = run(
        make_data,
        make_federation,
        make(momentum=momentum),
        rounds=1,
        batching=Batching(-1),
        local_epochs=3,
        lr=1e-7,
        optimizer=partial(torch.optim.SGD, momentum=momentum),
    )
    model, data = initial(5, 3), federation.data
    gradients = []
    for k in range(3):
        at = data.train_clients.indices_of(k)
        logits = model(data.examples.inputs[at].double())
        loss = torch.nn.functional.cross_entropy(logits, data.examples.targets[at])
        gradients.append(torch.autograd.grad(loss, model.weight)[0])
    expected = 0.1 * sum(gradients) / 3
    torch.testing.assert_close(
        federation.server["delta"]["weight"], expected, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("rates", [(0.1, 0.0), (0.0, 0.0)])
def test_a_learning_rate_of_zero_keeps_delta(make_data, make_federation, rates):
    federation = run(make_data, make_federation, make(), rounds=1, lr=rates[0])
    before = federation.server
    assert bool(before["delta"]["weight"].any()) == (rates[0] > 0)
    changing = run(make_data, make_federation, make(), rounds=2, lr=rates)
    torch.testing.assert_close(changing.server, before, rtol=0, atol=0)
    assert changing.history[-1]["cohort/rejected"] == 0


def test_the_broadcast_is_twice_a_model_and_the_upload_once(make_data, make_federation):
    federation = run(make_data, make_federation, make())
    model = num_bytes(federation.initial["params"])
    assert federation.history[1]["comm/down_bytes"] == 3 * 2 * model
    assert federation.history[1]["comm/up_bytes"] == 3 * (model + 8)


def test_optimizers_other_than_sgd_are_refused():
    with pytest.raises(ValueError, match="optimizer=sgd"):
        make(momentum=None)
