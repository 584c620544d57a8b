"""pFedHN against its equations, in plain torch and double precision."""

import numpy as np
import pytest
import torch
from algorithms_by_name import assert_rounds_follow, federation_of, personal_vectors
from references import initial

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching

SIZES, LR, EPOCHS, ROUNDS, LAYERS = (3, 8, 1, 6, 7), 0.3, 3, 4, 2
OPTIONS = {
    "embedding_dim": 3,
    "hidden_dim": 6,
    "num_hidden": LAYERS,
    "server_lr": 0.5,
    "weight_decay": 0.01,
}


def outcome(federation):
    """(phi, personal models [N, P])."""
    phi = {
        name.removeprefix(".hypernetwork."): leaf
        for name, leaf in federation.server["phi"].items()
    }
    return phi, personal_vectors(federation)


def model(phi, k):
    """h(v_k; phi) [P]."""
    z = phi["embeddings"][k]
    for i in range(LAYERS + 1):
        z = phi[f"hidden.{2 * i}.weight"] @ (z.relu() if i else z) + phi[f"hidden.{2 * i}.bias"]
    return torch.cat([phi[f"last.{i}.weight"] @ z + phi[f"last.{i}.bias"] for i in range(2)])


def shamsian(clip_norm):
    """Algorithm 1 of Shamsian et al. 2021 with the authors' SGD."""

    def equations(reference, start, cohorts):
        phi, _ = start
        velocity = {}
        for round_idx, cohort in enumerate(cohorts, start=1):
            if cohort:
                phi = {name: leaf.clone().requires_grad_() for name, leaf in phi.items()}
                total = {name: torch.zeros_like(leaf) for name, leaf in phi.items()}
                for k in cohort:
                    w = model(phi, k)
                    trained = reference.sgd(k, round_idx, w.detach().numpy())
                    way = w.detach() - torch.from_numpy(trained)
                    found = torch.autograd.grad(w, list(phi.values()), way)
                    for name, grad in zip(phi, found, strict=True):
                        total[name] += grad / len(cohort)
                norm = torch.cat([grad.flatten() for grad in total.values()]).norm()
                factor = min(1.0, clip_norm / float(norm + 1e-6))
                for name, leaf in phi.items():
                    grad = factor * total[name] + OPTIONS["weight_decay"] * leaf.detach()
                    velocity[name] = 0.9 * velocity[name] + grad if name in velocity else grad
                phi = {n: leaf.detach() - 0.5 * velocity[n] for n, leaf in phi.items()}
            yield phi, np.stack([model(phi, k) for k in range(reference.num_clients)])

    return equations


@pytest.fixture
def solve(make_data, make_federation):
    def solve(**options):
        return federation_of(
            *(make_data, make_federation, "pfedhn", initial(5, 3)),
            **{
                "sizes": SIZES,
                "rounds": ROUNDS,
                "lr": LR,
                "local_epochs": EPOCHS,
                "batching": Batching(2),
                **options,
            },
        )

    return solve


@pytest.mark.parametrize(("engine", "stack"), [(EagerTraining, 1), (FusedTraining, 3)])
@pytest.mark.parametrize(
    ("sampling", "clip_norm"),
    [({}, 50.0), ({"fraction": 0.6, "dropout": 0.3}, 0.1), ({"fraction": 0.2}, 50.0)],
    ids=["all", "some_clipped", "one"],
)
def test_rounds_follow_the_paper(solve, sampling, clip_norm, engine, stack):
    federation = solve(sampling=sampling, algorithm={**OPTIONS, "clip_norm": clip_norm})
    found = assert_rounds_follow(
        federation, outcome, shamsian(clip_norm), engine=engine, stack=stack
    )
    assert np.ptp(found[-1][1], axis=0).max() > 0.01


def test_an_embedding_has_one_number_and_one_more_for_four_clients(solve):
    server = solve().algorithm.server_state({"params": {}, "buffers": {}})
    assert server["phi"]["embeddings"].shape == (5, 2)
