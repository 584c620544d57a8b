"""FedCross against its equations in NumPy, and its limits."""

from functools import partial

import numpy as np
import pytest
from algorithms_by_name import (
    algorithm_of,
    assert_leaves_close,
    assert_rounds_follow,
    federation_of,
    run,
    server_of,
    server_vector,
)
from engine_runs import with_batchnorm
from references import initial, vector

from flfast.algorithms.kit.several_models import one_of
from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS, ALPHA = (3, 8, 1, 6, 7), 0.3, 2, 6, 0.8


def similarity(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def partner(models, i, selection, round_idx):
    """CoModelSel: the place of the collaborative model."""
    num = len(models)
    if selection == "in_order":
        return (i + ((round_idx - 1) % (num - 1) + 1)) % num
    others = [j for j in range(num) if j != i]
    best = max if selection == "highest" else min
    return best(others, key=lambda j: similarity(models[i], models[j]))


def hu(reference, start, cohorts, dealt, selection):
    """Algorithm 1 of Hu et al. 2024: (middleware models, server's model) after every round."""
    models, _ = start
    assert [sorted(places) for places in dealt] == cohorts
    for round_idx, places in enumerate(dealt, start=1):
        trained = list(models)
        for i in set(places.values()):
            own = [k for k, place in places.items() if place == i]
            trained[i] = np.mean([reference.sgd(k, round_idx, models[i]) for k in own], axis=0)
        partners = [partner(trained, i, selection, round_idx) for i in range(len(models))]
        pairs = zip(trained, (trained[j] for j in partners), strict=True)
        models = [ALPHA * v + (1 - ALPHA) * other for v, other in pairs]
        yield models, np.mean(models, axis=0)


def outcome(federation):
    """(middleware models, the server's model)."""
    stack = federation.server["models"]
    num = len(stack["params"]["bias"])
    return [vector(one_of(stack, i)["params"]) for i in range(num)], server_vector(federation)


@pytest.mark.parametrize("selection", ["in_order", "highest", "lowest"])
@pytest.mark.parametrize(
    ("batch_size", "num_models", "sampling"),
    [(-1, 5, {}), (3, 4, {"fraction": 0.8, "dropout": 0.2}), (3, 3, {})],
    ids=["all", "some", "shared"],
)
def test_trajectories_follow_the_paper(
    make_data, make_federation, selection, batch_size, num_models, sampling
):
    dealt = []

    def sending(algorithm):
        def send(server, records, clients):
            rows = algorithm.send(server, records, clients)
            dealt.append(dict(zip(clients, rows["place"].tolist(), strict=True)))
            return rows

        return send

    options = {"alpha": ALPHA, "selection": selection, "num_models": num_models}
    federation = federation_of(
        *(make_data, make_federation, "fedcross", initial(5, 3)),
        sizes=SIZES,
        rounds=ROUNDS,
        lr=LR,
        local_epochs=EPOCHS,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm=options,
        fields={"send": sending},
    )
    equations = partial(hu, dealt=dealt, selection=selection)
    assert_rounds_follow(federation, outcome, equations)
    assert all(len(set(places.values())) == min(len(places), num_models) for places in dealt)
    assert any(places != dealt[0] for places in dealt)


def test_with_one_model_it_is_fedavg(make_data, make_federation):
    def solve(name, **algorithm):
        return run(
            federation_of(
                make_data,
                make_federation,
                name,
                with_batchnorm().double(),
                sizes=(7, 2, 5),
                rounds=3,
                batching=Batching(3, drop_single=True),
                algorithm=algorithm,
            )
        )

    fedavg = solve("fedavg", weighting="uniform")
    found = solve("fedcross", num_models=1)
    assert_leaves_close(server_of(found), server_of(fedavg))
    assert_leaves_close(found.server["buffers"], fedavg.server["buffers"])


def test_there_are_as_many_models_as_clients_in_a_cohort():
    model = initial(5, 3)
    for options, num in (({"fraction": 0.25}, 5), ({}, 20), ({"num_models": 7}, 7)):
        algorithm = algorithm_of("fedcross", model, num_clients=20, **options)
        weights = {"params": dict(model.named_parameters()), "buffers": {}}
        assert len(algorithm.server_state(weights)["models"]["params"]["bias"]) == num
