"""IFCA against its equations, its limit, and clusters that it finds."""

from functools import partial

import numpy as np
import pytest
import torch
from algorithms_by_name import (
    assert_leaves_close,
    assert_rounds_follow,
    federation_of,
    personal_of,
    run,
    server_of,
)
from engine_runs import mlp, ran, with_batchnorm
from references import initial, vector

from flfast.algorithms.kit.several_models import one_of
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.zoo.algorithms.ifca import ifca

SIZES, LR, EPOCHS, ROUNDS = (3, 8, 1, 6, 7), 0.3, 3, 4


def outcome(federation):
    """Models [K, P] of the server."""
    models = federation.server["models"]
    return np.stack([vector(one_of(models, j)["params"]) for j in range(3)])


def loss(reference, w, k):
    """Mean cross-entropy of a client's examples."""
    examples = reference.data.examples
    indices = reference.data.train_clients.indices_of(k)
    x, y = examples.inputs[indices].double().numpy(), examples.targets[indices].numpy()
    z = x @ w[:-3].reshape(3, -1).T + w[-3:]
    return (np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).mean()


def ghosh(reference, models, cohorts, *, weighting, chosen):
    """Algorithm 1 of Ghosh et al. 2020: models [K, P] of every round, and all choices so far."""
    for round_idx, cohort in enumerate(cohorts, start=1):
        choices = {k: int(np.argmin([loss(reference, w, k) for w in models])) for k in cohort}
        trained = {k: reference.sgd(k, round_idx, models[j]) for k, j in choices.items()}
        models = models.copy()
        for j in set(choices.values()):
            members = [k for k in cohort if choices[k] == j]
            weights = [reference.size(k) if weighting == "samples" else 1 for k in members]
            models[j] = np.average([trained[k] for k in members], axis=0, weights=weights)
        chosen.append(choices)
        yield models


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.6, "dropout": 0.3}], ids=["all", "some"])
@pytest.mark.parametrize(("batch_size", "weighting"), [(-1, "uniform"), (2, "samples")])
def test_trajectories_follow_the_paper(
    make_data, make_federation, batch_size, weighting, sampling
):
    federation = federation_of(
        *(make_data, make_federation, "ifca", initial(5, 3)),
        sizes=SIZES,
        rounds=ROUNDS,
        lr=LR,
        local_epochs=EPOCHS,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm={"num_clusters": 3, "spread": 1.0, "weighting": weighting},
    )
    chosen = []
    equations = partial(ghosh, weighting=weighting, chosen=chosen)
    models = assert_rounds_follow(federation, outcome, equations, engine=None)
    assert len({j for choices in chosen for j in choices.values()}) > 1
    last = {k: j for choices in chosen for k, j in choices.items()}
    for k in range(len(SIZES)):
        np.testing.assert_allclose(vector(personal_of(federation, k)), models[-1][last.get(k, 0)])


@pytest.mark.parametrize("options", [{"num_clusters": 1}, {"spread": 0.0}])
def test_with_one_cluster_or_equal_models_it_is_fedavg(options, make_data, make_federation):
    def solve(name, **algorithm):
        return run(
            federation_of(
                make_data,
                make_federation,
                name,
                with_batchnorm(),
                sizes=(7, 2, 5),
                rounds=3,
                local_epochs=2,
                batching=Batching(3, drop_single=True),
                algorithm={"weighting": "samples", **algorithm},
            )
        )

    fedavg = solve("fedavg")
    found = solve("ifca", **options)
    first = one_of(found.server["models"], 0)
    assert_leaves_close(first["params"], server_of(fedavg), tol=1e-9)
    assert_leaves_close(first["buffers"], fedavg.server["buffers"], tol=1e-9)


def test_initial_models_have_the_same_values_in_another_order():
    weights = {"params": {"w": torch.arange(12.0).view(3, 4)}, "buffers": {"n": torch.tensor(2)}}
    algorithm = ifca(num_clusters=3, spread=1.0, weighting="uniform", seed=0)
    models = algorithm.server_state(weights)["models"]
    w = models["params"]["w"]
    assert torch.equal(w[0], weights["params"]["w"])
    assert not torch.equal(w[1], w[2])
    assert torch.equal(w[1].flatten().sort().values, torch.arange(12.0))
    assert models["buffers"]["n"].tolist() == [2, 2, 2]


@pytest.mark.slow  # `test_contract.py` has a fast one
@pytest.mark.parametrize("model", [mlp, with_batchnorm])
def test_engines_agree_on_stacks_of_clients_that_begin_at_other_models(
    model, make_data, make_federation
):
    def solve(engine):
        return ran(
            federation_of(
                make_data,
                make_federation,
                "ifca",
                model(),
                sizes=(7, 6, 5, 4, 9),
                rounds=3,
                local_epochs=2,
                batching=Batching(3, drop_single=model is with_batchnorm),
            ),
            engine,
            **({} if engine is EagerTraining else {"stack": 5}),
        )

    eager, fused = solve(EagerTraining), solve(FusedTraining)
    torch.testing.assert_close(fused.server, eager.server, rtol=1e-9, atol=1e-9)
    for k in range(5):
        found, expected = (f.engine.site.states.get(k) for f in (fused, eager))
        assert torch.equal(found["cluster"], expected["cluster"])


@pytest.mark.slow
def test_clients_with_swapped_labels_are_separated(make_data, make_federation):
    data = make_data((30,) * 6)
    labels = data.examples.targets
    for k in (0, 2, 4):
        indices = data.train_clients.indices_of(k)
        labels[indices] = (labels[indices] + 1) % 3
    federation = make_federation(
        data,
        initial(5, 3),
        algorithm=ifca(num_clusters=2, spread=1.0, weighting="uniform", seed=0),
        rounds=8,
        lr=0.3,
        local_epochs=2,
        eval_every=8,
        trainer={"precision": "64-true"},
    )
    federation.run()
    states = federation.engine.site.states
    clusters = [int(states.get(k)["cluster"]) for k in range(6)]
    assert clusters[::2] == [clusters[0]] * 3
    assert clusters[1::2] == [1 - clusters[0]] * 3


def test_models_keep_their_data_type(make_data, make_federation):
    federation = make_federation(
        make_data((4, 6)),
        initial(5, 3).float(),
        algorithm=ifca(num_clusters=2, spread=1.0, weighting="uniform", seed=0),
        rounds=2,
    )
    federation.run()
    assert federation.server["models"]["params"]["weight"].dtype == torch.float32
    first, second = (row["comm/down_bytes"] for row in federation.history[1:])
    assert first == second
