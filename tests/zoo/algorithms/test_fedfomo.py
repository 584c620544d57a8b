"""FedFomo against its equations in NumPy, and the choice of models."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from algorithms_by_name import assert_rounds_follow, federation_of, personal_vectors
from references import initial

from flfast.state.plan import Batching
from flfast.zoo.algorithms.fedfomo import epsilon_greedy, fedfomo

SIZES, LR, EPOCHS, ROUNDS = (3, 8, 2, 6, 7), 0.3, 2, 6


def loss(reference, w, k):
    """Mean cross-entropy of a client's training examples."""
    examples = reference.data.examples
    at = reference.data.train_clients.indices_of(k)
    x, y = examples.inputs[at].double().numpy(), examples.targets[at].numpy()
    z = x @ w[:-3].reshape(3, -1).T + w[-3:]
    return (np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).mean()


def gains_of(reference, k, before, uploaded):
    """Gains of client k by candidate."""
    gains = {}
    for j, w in uploaded.items():
        far = np.linalg.norm(w - before)
        drop = loss(reference, before, k) - loss(reference, w, k)
        gains[j] = drop / far if far > 0 else 0.0
    return gains


def zhang(reference, start, cohorts, sent):
    """Algorithm 1 of Zhang et al. 2021: (models [N, P], affinities [N, N]) of every round."""
    num, w, peers = len(SIZES), start[0][0], peers_of(sent, cohorts)
    before, own, affinity = [w] * num, [w] * num, np.zeros((num, num))
    for round_idx, cohort in enumerate(cohorts, start=1):
        last, affinity = list(own), affinity.copy()
        for k in cohort:
            chosen = peers[round_idx - 1][k]
            gains = gains_of(reference, k, before[k], {j: last[j] for j in (k, *chosen)})
            total = sum(max(gain, 0) for gain in gains.values())
            step = np.zeros_like(w)
            for j in (j for j, gain in gains.items() if gain > 0):
                step += gains[j] / total * (last[j] - before[k])
            for j in chosen:
                affinity[k, j] += gains[j]
            before[k] = before[k] + step
            own[k] = reference.sgd(k, round_idx, before[k])
        yield np.stack(own), affinity


def peers_of(sent, cohorts):
    """Peers by client, of every round; the server also sends for evaluations."""
    peers = [{} for _ in cohorts]
    for done, clients, rows in sent:
        if done < len(cohorts) and list(clients) == cohorts[done]:
            peers[done] = dict(zip(clients, rows, strict=True))
    return peers


def outcome(federation):
    """(models [N, P], affinities [N, N])."""
    return personal_vectors(federation), federation.server["affinity"].numpy()


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.8, "dropout": 0.2}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "num_models"), [(-1, 9), (3, 2)])
def test_trajectories_follow_the_paper(
    make_data, make_federation, batch_size, num_models, sampling
):
    sent = []

    def sending(algorithm):
        def send(server, records, clients):
            rows = algorithm.send(server, records, clients)
            sent.append((int(server["rounds"]), clients, rows["peers"].tolist()))
            return rows

        return send

    options = {"num_models": num_models, "epsilon": 0.4, "decay": 0.2}
    federation = federation_of(
        *(make_data, make_federation, "fedfomo", initial(5, 3)),
        sizes=SIZES,
        rounds=ROUNDS,
        lr=LR,
        local_epochs=EPOCHS,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm=options,
        fields={"send": sending},
    )
    expected = assert_rounds_follow(federation, outcome, partial(zhang, sent=sent), tol=1e-8)
    affinities = [affinity for _, affinity in expected]
    cohorts = [federation.cohort(r).clients.tolist() for r in range(1, ROUNDS + 1)]
    peers = peers_of(sent, cohorts)
    assert affinities[-1].max() > 0 > affinities[-1].min()
    for done, chosen in enumerate(peers[2:], start=2):  # epsilon is 0 from round 3 on
        known = {k for cohort in cohorts[:done] for k in cohort}
        for k, row in chosen.items():
            others = affinities[done - 1][k, sorted(known - {k, *row})]
            assert len(row) == min(num_models, 4)
            assert not len(others) or affinities[done - 1][k, row].min() >= others.max()


def chosen(epsilon, seed, *, known=range(6)):
    rng = torch.Generator().manual_seed(seed)
    affinities = torch.tensor([0.3, 0.9, 0.1, 0.5, 0.5, 0.2])
    return epsilon_greedy(affinities, 1, known, num=3, epsilon=epsilon, rng=rng)


def test_the_highest_affinities_are_chosen_and_ties_are_drawn():
    orders = Counter(tuple(chosen(0.0, seed)) for seed in range(100))
    assert orders.keys() == {(3, 4, 0), (4, 3, 0)}
    assert min(orders.values()) > 25


def test_explorers_choose_any_other_client_equally_often():
    drawn = [chosen(1.0, seed) for seed in range(500)]
    assert all(len(set(row)) == 3 for row in drawn)
    times = Counter(j for row in drawn for j in row)
    assert times.keys() == {0, 2, 3, 4, 5}
    assert all(240 < times[j] < 360 for j in times)


def test_clients_that_never_uploaded_are_chosen_last():
    assert {frozenset(chosen(e, 5, known=(0, 1, 2, 5))) for e in (0.0, 1.0)} == {
        frozenset({0, 2, 5})
    }


def test_a_client_without_others_is_refused_before_training():
    with pytest.raises(ValueError, match="mixes models of others"):
        fedfomo(num_models=2, epsilon=0.3, decay=0.0, initial={}, seed=0, num_clients=1)
