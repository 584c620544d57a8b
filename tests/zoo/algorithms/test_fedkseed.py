"""FedKSeed against its equations, and the size of its messages."""

import numpy as np
import pytest
import torch
from algorithms_by_name import assert_rounds_follow, federation_of, run, server_vector
from engine_runs import mlp, with_batchnorm
from references import initial

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.state.randomness import torch_generator
from flfast.state.traced_noise import traced_index, traced_normal
from flfast.zoo.algorithms.fedkseed import fedkseed

SEEDS, DISTANCE = 12, 1e-3
SGD = {"momentum": 0.0, "weight_decay": 0.0, "gradient_clip_val": None, "bn": "aggregate"}
OTHERS = [{"momentum": 0.9}, {"momentum": None}, {"weight_decay": 0.1}, {"gradient_clip_val": 1.0}]
LIKE = {"weight": torch.zeros(3, 5), "bias": torch.zeros(3)}


def drawn(generator):
    return torch.randint(2**62, (), generator=generator)


def directions():
    """z_1 ... z_K [K, P], of a model with seed 0."""
    known = drawn(torch_generator(0, "fedkseed directions"))
    zs = (traced_normal(known, torch.tensor(j), LIKE) for j in range(SEEDS))
    return np.stack([torch.cat([leaf.flatten() for leaf in z.values()]).double() for z in zs])


def loss_at(w, step):
    """Mean cross-entropy of a step's examples."""
    inputs, targets = step
    weight, bias = w[:-3].reshape(3, -1), w[-3:]
    logits = inputs @ weight.T + bias
    return np.mean(np.log(np.exp(logits).sum(1)) - logits[range(len(targets)), targets])


def qin(reference, w, cohorts):
    """Clients get a, the sums along all directions, and rebuild the model from w[0]."""
    z, first, a = directions(), w, np.zeros(SEEDS)
    for round_idx, cohort in enumerate(cohorts, start=1):
        done = {}
        for k in cohort:
            key = drawn(torch_generator(0, "algorithm: fedkseed", round_idx, k))
            own, model = a.copy(), first + a @ z
            for number, step in enumerate(reference.steps(k, round_idx)):
                j = int(traced_index(key, torch.tensor(number), SEEDS))
                up, down = (loss_at(model + s * DISTANCE * z[j], step) for s in (1, -1))
                g = (up - down) / (2 * DISTANCE)
                model, own[j] = model - reference.lr * g * z[j], own[j] - reference.lr * g
            np.testing.assert_allclose(model, first + own @ z, atol=1e-12)
            done[k] = own
        a = reference.mean(done) if done else a
        yield first + a @ z


@pytest.mark.parametrize("engine", [EagerTraining, FusedTraining])
@pytest.mark.parametrize("batch_size", [-1, 2])
def test_trajectories_follow_the_paper(make_data, make_federation, batch_size, engine):
    """Clients miss rounds, and rebuild the model from what they are sent."""
    federation = federation_of(
        *(make_data, make_federation, "fedkseed", initial(5, 3)),
        algorithm={"num_seeds": SEEDS, "distance": DISTANCE},
        sizes=(3, 8, 1, 6),
        batching=Batching(batch_size),
        rounds=4,
        local_epochs=3,
        sampling={"fraction": 0.6, "dropout": 0.3},
    )
    start = server_vector(federation)
    expected = assert_rounds_follow(federation, server_vector, qin, tol=1e-9, engine=engine)
    assert abs(expected[-1] - start).max() > 0.01


@pytest.mark.parametrize("width", [5, 50])
def test_a_message_has_a_number_for_each_seed(make_data, make_federation, sent_uploads, width):
    """Whatever the size of the model is: 8 bytes in double precision."""
    layers = torch.nn.Linear(5, width), torch.nn.Tanh(), torch.nn.Linear(width, 3)
    model = torch.nn.Sequential(*layers).double()
    federation = federation_of(
        *(make_data, make_federation, "fedkseed", model), algorithm={"num_seeds": SEEDS}, rounds=2
    )
    history = run(federation).history
    for row in history[1:]:
        assert row["comm/up_bytes"] == row["comm/down_bytes"] == 3 * 8 * SEEDS
    assert {upload["sums"].shape for upload in sent_uploads} == {(SEEDS,)}
    assert not any(upload["params"] for upload in sent_uploads)


@pytest.mark.slow
def test_the_slope_is_that_of_the_gradient(make_data, make_federation):
    """Many directions and a small step: about the change of gradient descent, in their span."""
    federation = federation_of(
        *(make_data, make_federation, "fedkseed", mlp()),
        algorithm={"num_seeds": 400, "distance": 1e-5},
        sizes=(9,),
        local_epochs=400,
        lr=1e-4,
    )
    before = {n: p.clone() for n, p in federation.weights().items()}
    rounds = run(federation)
    plain = federation_of(
        *(make_data, make_federation, "fedavg", mlp()), sizes=(9,), local_epochs=400, lr=1e-4
    )
    run(plain)
    moved, expected = (
        torch.cat([(one.weights()[n] - before[n]).flatten() for n in before])
        for one in (rounds, plain)
    )
    assert torch.cosine_similarity(moved, expected, dim=0) > 0.8


def test_buffers_are_averaged(make_data, make_federation):
    """Both passes of a step update the statistics of BatchNorm."""
    federation = federation_of(
        make_data, make_federation, "fedkseed", with_batchnorm(), sizes=(6,), local_epochs=3
    )
    assert int(run(federation).server["buffers"]["2.num_batches_tracked"]) == 6


@pytest.mark.parametrize("options", OTHERS)
def test_other_optimizers_are_refused(options):
    settings = {"num_seeds": 3, "distance": 0.1, "weighting": "uniform", "seed": 0}
    with pytest.raises(ValueError, match=r"algorithm=fedkseed adds up .* allowed: optimizer=sgd"):
        fedkseed(**{**settings, **SGD, **options}, initial={"params": {}, "buffers": {}})


def test_parts_of_the_model_that_stay_on_the_client_are_refused():
    settings = {"num_seeds": 3, "distance": 0.1, "weighting": "uniform", "seed": 0}
    with pytest.raises(ValueError, match="bn=local with algorithm=fedkseed"):
        fedkseed(**{**settings, **SGD, "bn": "local"}, initial={"params": {}, "buffers": {}})


def test_a_later_phase_cannot_clip_steps_of_which_lengths_are_sent(flfast_run, capsys):
    phase = "schedule.phases=[{from: 2, overrides: ['trainer.gradient_clip_val=1.0']}]"
    with pytest.raises(SystemExit):
        flfast_run("algorithm=fedkseed", "rounds=3", phase)
    message = "schedule.phases[0]: algorithm.gradient_clip_val=1.0: must be 0 or None"
    assert message in capsys.readouterr().err
