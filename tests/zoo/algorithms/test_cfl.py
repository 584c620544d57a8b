"""CFL against its equations in NumPy, its limits, and clusters that it finds."""

from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch
from algorithms_by_name import (
    algorithm_of,
    assert_leaves_close,
    assert_rounds_follow,
    federation_of,
    run,
    server_of,
)
from engine_runs import mlp
from references import initial, vector

from flfast.algorithms.kit.several_models import one_of
from flfast.state.plan import Batching
from flfast.zoo.algorithms.cfl import bipartition

SIZES, LR, EPOCHS, ROUNDS = (6, 8, 3, 6, 7, 5), 0.3, 2, 8
OPTIONS = {"eps1": 0.35, "eps2": 0.25, "warmup": 1, "max_clusters": 3, "weighting": "samples"}


def best_parts(changes):
    """The two parts with the lowest highest similarity across, by trying all of them."""
    num = len(changes)
    unit = [change / np.linalg.norm(change) for change in changes]

    def across(part):
        rest = [j for j in range(num) if j not in part]
        return max(unit[i] @ unit[j] for i in part for j in rest)

    subsets = (part for size in range(1, num) for part in combinations(range(num), size))
    part = min(subsets, key=across)
    parts = [list(part), [j for j in range(num) if j not in part]]
    return sorted(parts, key=lambda part: (-len(part), part))


def sattler(reference, start, cohorts):
    """CFL of Sattler et al. 2020: (cluster of every client, models) after every round."""
    of, models = [0] * len(SIZES), start[1][:1]
    for round_idx, cohort in enumerate(cohorts, start=1):
        of, models = list(of), list(models)
        changes = {k: reference.sgd(k, round_idx, models[of[k]]) - models[of[k]] for k in cohort}
        for c in range(len(models)):
            members = [k for k in cohort if of[k] == c]
            if not members:
                continue
            sizes = [reference.size(k) for k in members]
            mean = np.average([changes[k] for k in members], axis=0, weights=sizes)
            longest = max(np.linalg.norm(changes[k]) for k in members)
            may = round_idx > OPTIONS["warmup"] and len(members) > 2 and len(models) < 3
            parts = [range(len(members))]
            if may and np.linalg.norm(mean) < OPTIONS["eps1"] and longest > OPTIONS["eps2"]:
                parts = best_parts([changes[k] for k in members])
                models.append(models[c])
            for place, part in zip((c, len(models) - 1), parts, strict=False):
                own = [members[i] for i in part]
                weights = [reference.size(k) for k in own]
                move = np.average([changes[k] for k in own], axis=0, weights=weights)
                models[place] = models[place] + move
                for k in own:
                    of[k] = place
        yield of, models


def outcome(federation):
    """(cluster of every client, models)."""
    server = federation.server
    models = [vector(one_of(server["models"], j)["params"]) for j in range(int(server["num"]))]
    return server["clusters"].tolist(), models


def swapped(make_data, sizes, **options):
    """Data whose even clients have other labels."""
    data = make_data(sizes, **options)
    for k in range(0, len(sizes), 2):
        indices = data.train_clients.indices_of(k)
        data.examples.targets[indices] = (data.examples.targets[indices] + 1) % 3
    return data


@pytest.mark.parametrize("sampling", [{}, {"fraction": 0.9}], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [-1, 3])
def test_trajectories_follow_the_paper(make_data, make_federation, batch_size, sampling):
    federation = federation_of(
        *(partial(swapped, make_data), make_federation, "cfl", initial(5, 3)),
        sizes=SIZES,
        rounds=ROUNDS,
        lr=LR,
        local_epochs=EPOCHS,
        batching=Batching(batch_size),
        sampling=sampling,
        algorithm=OPTIONS,
    )
    expected = assert_rounds_follow(federation, outcome, sattler)
    nums = [len(models) for _, models in expected]
    assert nums[0] == 1
    assert nums[-1] > 1


@pytest.mark.slow
def test_clients_with_other_labels_get_a_cluster_of_their_own(make_data, make_federation):
    data, model = swapped(make_data, (30,) * 6), initial(5, 3)
    options = {"eps1": 0.2, "eps2": 0.3, "warmup": 5, "max_clusters": 2}
    federation = make_federation(
        data,
        model,
        algorithm=algorithm_of("cfl", model, num_clients=6, **options),
        rounds=12,
        eval_every=99,
        lr=0.3,
        local_epochs=9,
        batching=Batching(-1),
        trainer={"precision": "64-true"},
    )
    run(federation)
    clusters = federation.server["clusters"].tolist()
    assert clusters in ([0, 1] * 3, [1, 0] * 3)


@pytest.mark.parametrize("options", [{"eps1": 0.0}, {"max_clusters": 1}])
def test_without_splits_it_is_fedavg(options, make_data, make_federation):
    def solve(name, **algorithm):
        return run(
            federation_of(
                make_data,
                make_federation,
                name,
                mlp(),
                sizes=(7, 2, 5),
                rounds=3,
                algorithm={"weighting": "samples", **algorithm},
            )
        )

    fedavg = solve("fedavg")
    found = solve("cfl", **{"eps1": 9.0, "eps2": 0.0, "warmup": 0, **options})
    assert_leaves_close(one_of(found.server["models"], 0)["params"], server_of(fedavg))


@pytest.mark.parametrize("seed", range(5))
def test_the_parts_are_the_least_similar_ones(seed):
    vectors = np.random.default_rng(seed).normal(size=(7, 3))
    assert list(bipartition(torch.tensor(vectors))) == best_parts(vectors)
