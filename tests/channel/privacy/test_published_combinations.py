"""Algorithms with privacy that have names of their own: their papers' equations in NumPy."""

import numpy as np
import pytest
import torch
from algorithms_by_name import algorithm_of, assert_rounds_follow, server_vector
from option_classes import called
from references import initial, vector

import flfast
from flfast.channel.privacy.dp_sgd import DpSgd
from flfast.channel.privacy.participation import Participation
from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.state.randomness import torch_generator
from flfast.state.traced_noise import traced_normal

BOUND, NOISE, BATCH, LR, ROUNDS, EPOCHS, SIZES = 0.8, 0.7, 2, 0.3, 4, 2, (4, 8, 2, 6)


class NoisedGradients:
    """Gradients H of a client's steps: single examples' are clipped, and noise is added."""

    def __init__(self, reference, k, round_idx):
        rng = torch_generator(reference.data.seed, "algorithm: dp_sgd noise", round_idx, k)
        self.key, self.reference = torch.randint(2**62, (), generator=rng), reference
        self.found = []

    def __call__(self, w, step):
        inputs, targets = step
        total = np.zeros_like(w)
        for i in range(len(targets)):
            g = self.reference.gradient(w, (inputs[i : i + 1], targets[i : i + 1]))
            total += g * min(1, BOUND / np.linalg.norm(g))
        like = initial(5, 3).state_dict()
        noise = traced_normal(self.key, torch.tensor(len(self.found)), like)
        self.found.append((total + NOISE * BOUND * vector(noise)) / BATCH)
        return self.found[-1]


def noble(reference, x, cohorts):
    """DP-SCAFFOLD, Algorithm 1: control variates are means of the noised gradients."""
    c, own = np.zeros_like(x), np.zeros((reference.num_clients, len(x)))
    for round_idx, cohort in enumerate(cohorts, start=1):
        moves, change = [], np.zeros_like(c)
        for k in cohort:
            gradient, drift = NoisedGradients(reference, k, round_idx), c - own[k]
            y = reference.sgd(k, round_idx, x, change=lambda w, d=drift: d, gradient=gradient)
            moves.append(y - x)
            change += np.mean(gradient.found, axis=0) - own[k]
            own[k] = np.mean(gradient.found, axis=0)
        x = x + np.mean(moves, axis=0)
        c = c + change / reference.num_clients
        yield x


@pytest.mark.parametrize(
    ("engine", "stack"),
    [pytest.param(EagerTraining, 1, marks=pytest.mark.slow), (FusedTraining, 3)],
)
def test_scaffold_with_dp_sgd_is_dp_scaffold(make_data, make_federation, engine, stack):
    private = called(
        DpSgd,
        clip_norm=BOUND,
        noise_multiplier=NOISE,
        epsilon=None,
        delta=1e-5,
        max_epsilon=None,
        micro_batch=64,
        participation=Participation("other", 4, 4, 4, reason="sampler=by_size"),
        rounds=ROUNDS,
        batch_size=BATCH,
        local_epochs=EPOCHS,
        local_steps=None,
    )
    model = initial(5, 3)
    algorithm = private.wrap(algorithm_of("scaffold", model, num_clients=len(SIZES)))
    federation = make_federation(
        make_data(SIZES),
        model,
        algorithm=algorithm,
        rounds=ROUNDS,
        lr=LR,
        local_epochs=EPOCHS,
        batching=Batching(BATCH),
        sampling={"fraction": 0.75},
        trainer={"precision": "64-true"},
    )
    assert_rounds_follow(federation, server_vector, noble, engine=engine, stack=stack, tol=1e-6)


@pytest.mark.slow
def test_fedsam_with_central_noise_is_dp_fedsam(tmp_path):
    """DP-FedSAM, Algorithm 1: each of m clients adds N(0, (z C)^2 / m) to its clipped change.

    Their mean has N(0, (z C / m)^2), which is what the server adds here, whatever clients do.
    """
    words = ("callbacks=files", "partition.num_clients=4", "rounds=1", "local_epochs=1")
    words = (*words, "privacy=central", "privacy.epsilon=null", "sampler.fraction=1.0")
    words = (*words, "strategy=single", "engine=eager", f"privacy.clip_norm={BOUND}")

    def moved(algorithm, z):
        """The model's change in a round."""
        options = (f"algorithm={algorithm}", f"privacy.noise_multiplier={z}")
        folder = tmp_path / f"{algorithm}{z}"
        flfast.run(*words, *options, folder=folder)
        trained = torch.load(folder / "model.pt", weights_only=True)
        return torch.cat([leaf.flatten() for leaf in trained.values()]).double()

    noise = {name: moved(name, NOISE) - moved(name, 0.0) for name in ("fedsam", "fedavg")}
    torch.testing.assert_close(*noise.values(), rtol=1e-3, atol=1e-5)
    assert float(noise["fedsam"].std()) == pytest.approx(NOISE * BOUND / 4, rel=0.02)
