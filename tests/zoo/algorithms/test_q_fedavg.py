"""q-FedAvg against Algorithm 2 of the paper, its limit, and losses of zero."""

import numpy as np
import pytest
import torch
from algorithms_by_name import assert_leaves_close, federation_of, run, server_of
from engine_runs import mlp

from flfast.zoo.algorithms.q_fedavg import q_fedavg


def mean_loss(reference, k, w):
    """Mean cross-entropy over all training examples of a client."""
    at = reference.data.train_clients.indices_of(k)
    inputs = reference.data.examples.inputs[at].double().numpy()
    targets = reference.data.examples.targets[at].numpy()
    logits = inputs @ w[:-3].reshape(3, -1).T + w[-3:]
    logits -= logits.max(axis=1, keepdims=True)
    log_normaliser = np.log(np.exp(logits).sum(axis=1))
    return (log_normaliser - logits[np.arange(len(targets)), targets]).mean()


def li(q):
    """Algorithm 2 of Li et al. 2020 on the clients of `Reference`."""

    def equations(reference, w, cohorts):
        lipschitz = 1 / reference.lr
        for round_idx, cohort in enumerate(cohorts, start=1):
            deltas, hs = [], []
            for k in cohort:
                loss = mean_loss(reference, k, w)
                change = lipschitz * (w - reference.sgd(k, round_idx, w))
                deltas.append(loss**q * change)
                hs.append(q * loss ** (q - 1) * (change @ change) + lipschitz * loss**q)
            if cohort:
                w = w - np.sum(deltas, axis=0) / np.sum(hs)
            yield w

    return equations


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "q"), [(-1, 1.0), (2, 1.0), (2, 0.3), (2, 5.0)])
def test_trajectories_follow_the_paper(assert_follows, batch_size, q, sampling):
    assert_follows(q_fedavg(q=q), li(q), batch_size=batch_size, sampling=sampling, lr=0.3)


@pytest.mark.parametrize("q", [0.5, 5.0])
def test_a_loss_of_zero_stays_finite(make_data, make_federation, q):
    """A bias of 1000 for the only class: the loss is exactly zero, and nothing moves."""
    model = mlp()
    torch.nn.init.zeros_(model[2].weight)
    model[2].bias.data = torch.tensor([1000.0, 0.0, 0.0])
    federation = federation_of(
        make_data, make_federation, "q_fedavg", model, sizes=(1,), algorithm={"q": q}
    )
    before = federation.initial["params"]
    assert_leaves_close(server_of(run(federation)), before)
