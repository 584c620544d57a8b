"""FedNova against its equations, and the cases in which it equals FedAvg."""

from functools import partial

import numpy as np
import pytest
import torch
from adversaries import ROBUST
from sampling import others_slow

from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.fednova import fednova
from flfast.algorithms.kit.local_sgd import gradient_weight
from flfast.channel.attacks.gaussian import gaussian
from flfast.channel.attacks.sign_flip import sign_flip
from flfast.channel.channel import Channel
from flfast.channel.sent import Sender
from flfast.state.vector import clipped
from flfast.zoo.channel.attacks.scaled import scaled

SGD = {"momentum": 0.0, "nesterov": False}
HEAVY_BALL = {"momentum": 0.6, "nesterov": False}
NESTEROV = {"momentum": 0.6, "nesterov": True}


def nova(weighting="samples", *, local_steps=None, **local):
    return fednova(
        weighting=weighting, local_steps=local_steps, local_optimizer_state="reset", **local
    )


def coefficients(num_steps, *, momentum, nesterov):
    """a_k of Wang et al.: the coefficients of the gradients in the sum of all steps."""
    steps, velocity = np.zeros(num_steps), np.zeros(num_steps)
    for i in range(num_steps):
        gradient = np.eye(num_steps)[i]
        velocity = momentum * velocity + gradient
        steps += gradient + momentum * velocity if nesterov else velocity
    return steps


@pytest.mark.parametrize("local", [SGD, HEAVY_BALL, NESTEROV])
@pytest.mark.parametrize("num_steps", [1, 2, 7])
def test_gradient_weight_is_the_norm_of_the_coefficients(num_steps, local):
    expected = coefficients(num_steps, **local).sum()
    assert gradient_weight(num_steps, **local) == pytest.approx(expected)


def test_coefficients_with_momentum_are_those_of_the_paper():
    expected = [(1 - 0.6**left) / (1 - 0.6) for left in (3, 2, 1)]
    assert coefficients(3, **HEAVY_BALL) == pytest.approx(expected)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("local", [SGD, HEAVY_BALL, NESTEROV])
def test_trajectories_follow_the_paper(assert_follows, local, weighting):
    """Clients take 2 to 8 local steps."""

    def equations(reference, w, cohorts):
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                shares = [reference.size(k) if weighting == "samples" else 1.0 for k in cohort]
                shares = np.array(shares) / sum(shares)
                norms, directions = [], []
                for k in cohort:
                    num_steps = len(reference.steps(k, round_idx))
                    norms.append(coefficients(num_steps, **local).sum())
                    moved = w - reference.sgd(k, round_idx, w, **local)
                    directions.append(moved / (reference.lr * norms[-1]))
                w = w - (shares @ norms) * (shares @ directions) * reference.lr
            yield w

    assert_follows(
        nova(weighting, **local),
        equations,
        batch_size=2,
        epochs=2,
        sampling={"fraction": 0.8, "dropout": 0.2},
        optimizer=partial(torch.optim.SGD, **local),
    )


def test_local_steps_of_another_optimizer_are_refused():
    with pytest.raises(ValueError, match="algorithm=fednova needs local steps of SGD"):
        nova(momentum=None, nesterov=None)


def final(make_data, make_federation, algorithm, **options):
    federation = make_federation(make_data([3, 8, 1, 6]), algorithm=algorithm, rounds=3, **options)
    federation.run()
    return federation.weights()


def test_with_equal_steps_it_is_fedavg_and_warns(make_data, make_federation, caplog):
    run = partial(final, make_data, make_federation)
    options = {"local_epochs": None, "local_steps": 3}
    found = run(nova(**SGD, local_steps=3), **options)
    assert "algorithm=fednova with local_steps=3 is FedAvg" in caplog.text
    torch.testing.assert_close(found, run(fedavg(weighting="samples"), **options))
    unequal = run(nova(**SGD))
    assert not torch.allclose(unequal["weight"], run(fedavg(weighting="samples"))["weight"])


EQUAL_STEPS = {"local_epochs": None, "local_steps": 3}
ADVERSARIES = {
    **{name: {"aggregation": robust} for name, robust in ROBUST.items()},
    "sign_flip": {"attack": sign_flip(fraction=0.3, scale=2.0), "aggregation": ROBUST["krum"]},
    "scaled": {"attack": scaled(fraction=0.3, scale=3.0)},
}


@pytest.mark.parametrize("name", others_slow(list(ADVERSARIES), list(ADVERSARIES)[:1]))
def test_with_equal_steps_it_is_fedavg_under_attacks_and_robust_aggregation(
    make_data, make_federation, name
):
    optimizer = partial(torch.optim.SGD, **HEAVY_BALL)

    def weights(algorithm):
        options = {"algorithm": algorithm, "optimizer": optimizer, **EQUAL_STEPS}
        federation = make_federation(data, rounds=2, **options)
        federation.engine.channel = Channel(attackers=frozenset({1, 4}), **ADVERSARIES[name])
        federation.run()
        return federation.weights()

    data = make_data([3, 8, 5, 6, 4, 7])
    found, expected = weights(nova(**HEAVY_BALL)), weights(fedavg(weighting="samples"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attack", [gaussian(fraction=1, std=9.0), sign_flip(fraction=1, scale=9)])
def test_steps_are_neither_clipped_nor_attacked(attack):
    upload = {"params": {"w": torch.ones(4)}, "steps": torch.tensor(500.0)}
    channel = Channel(attack=attack, attackers=frozenset({0}))
    sent = channel.attacked(upload, Sender(0, 1), {"steps"})
    found, _ = clipped(sent, {"steps"}, 0.1)
    assert found["steps"] == 500
    assert float(found["params"]["w"].norm()) == pytest.approx(0.1)


def test_krum_selects_one_clients_model_whatever_its_number_of_steps(
    make_data, make_federation, sent_uploads
):
    """Krum compares normalised directions; the selected one is scaled back to a whole update."""
    federation = make_federation(make_data([3, 9, 1, 7, 5, 6]), algorithm=nova(**SGD))
    federation.engine.channel = Channel(aggregation=ROBUST["krum"])
    federation.run()
    found = federation.weights()["weight"]
    fedavg_run = make_federation(make_data([3, 9, 1, 7, 5, 6]))
    start = fedavg_run.weights()["weight"]
    sent_uploads.clear()
    fedavg_run.run()
    models = [start + upload["params"]["weight"] for upload in sent_uploads]
    assert sum(torch.allclose(found, model, rtol=1e-5, atol=1e-6) for model in models) == 1
