"""DP-SGD: gradients of single examples, clipped and noised alike on both engines."""

from functools import partial

import pytest
import torch
from engine_runs import assert_engines_agree, net, ran
from option_classes import called
from torch import nn

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.algorithm_capabilities import capabilities_of
from flfast.algorithms.contract.client import LocalStage
from flfast.algorithms.ditto import ditto
from flfast.algorithms.fedavg import fedavg
from flfast.algorithms.fedprox import fedprox
from flfast.channel.privacy.dp_sgd import DpSgd, check_independent
from flfast.channel.privacy.participation import Participation
from flfast.channel.privacy.per_example import clipped_sum
from flfast.datamodules.batches import Batch
from flfast.engines.eager import EagerTraining
from flfast.lit.task import LocalTask
from flfast.models.transformer import DecoderTransformer
from flfast.state.plan import Batching
from flfast.state.tree import leaves, squared_norm, tree_map
from flfast.state.weights import read_weights
from flfast.tasks.classification import CLASSIFICATION
from flfast.tasks.language import LANGUAGE
from flfast.zoo.algorithms.fedlc import fedlc
from flfast.zoo.algorithms.fedsam import fedsam

DOUBLE = {"precision": "64-true"}
OTHER = Participation("other", 3, 3, 3, reason="sampler=by_size")
make = partial(
    called,
    DpSgd,
    clip_norm=0.5,
    noise_multiplier=1.0,
    epsilon=None,
    delta=1e-5,
    max_epsilon=None,
    micro_batch=64,
    participation=OTHER,
    rounds=2,
    batch_size=4,
    local_epochs=1,
    local_steps=None,
)
WITHOUT = {"clip_norm": None, "noise_multiplier": 0.0}


def mlp():
    return net(lambda: nn.Linear(5, 8), nn.Tanh, lambda: nn.Linear(8, 3))


class Temperature(nn.Module):
    """Its parameter is a single number []."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * x


def cnn():
    return net(
        *(lambda: nn.Conv2d(2, 4, 3, padding=1), lambda: nn.GroupNorm(2, 4), nn.ReLU),
        *(lambda: nn.MaxPool2d(2), nn.Flatten, lambda: nn.Linear(16, 3), Temperature),
    )


def decoder():
    torch.manual_seed(1)  # noqa: TID251 - a test's own model
    sizes = {"num_classes": 7, "num_tokens": 7, "width": 8, "layers": 1, "heads": 2}
    return DecoderTransformer(input_shape=(5,), task="language", dropout=0.0, **sizes)


MODELS = {
    "mlp": (mlp, (5,), CLASSIFICATION),
    "cnn": (cnn, (2, 4, 4), CLASSIFICATION),
    "transformer": (decoder, None, LANGUAGE),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_single_examples(name):
    """They are those of a loop over examples; the last example is padding, and counts zero."""
    make_model, shape, task_type = MODELS[name]
    model, rng = make_model().double(), torch.Generator().manual_seed(0)
    targets = torch.randint(3, (6,) if shape else (6, 5), generator=rng)
    inputs = torch.randn(6, *shape, generator=rng).double() if shape else targets.flip(1)
    params = dict(model.named_parameters())
    grads, losses = [], []
    for i in range(5):
        losses.append(task_type.loss(model(inputs[i : i + 1]), targets[i : i + 1]))
        found = torch.autograd.grad(losses[-1], params.values())
        grads.append(dict(zip(params, found, strict=True)))
    norms = [float(squared_norm(g).sqrt()) for g in grads]
    bound = sorted(norms)[2]
    sums = tree_map(
        lambda *leaf: sum(g * min(1, bound / norm) for g, norm in zip(leaf, norms, strict=True)),
        *grads,
    )
    weights = torch.tensor([0.2] * 5 + [0.0]).double()
    task = LocalTask(model, task_type, example_weights=weights)
    loss, found, counted = clipped_sum(
        lambda params, batch: task(params, batch),
        *(task, params, Batch(inputs, targets)),
        clip_norm=bound,
        micro_batch=4,
    )
    assert counted == 5
    assert float(loss) == pytest.approx(sum(value.item() for value in losses) / 5)
    torch.testing.assert_close(found, sums, rtol=1e-6, atol=1e-9)


def federation(make_data, make_federation, algorithm, *, sizes=(8, 4, 8), **options):
    settings = {"rounds": 2, "batching": Batching(4), "trainer": DOUBLE, **options}
    return make_federation(make_data(sizes), mlp(), algorithm=algorithm, **settings)


@pytest.mark.slow
def test_engines_agree(make_data, make_federation):
    """Noise included; the noise's key and counter stay out of uploads and client states."""
    algorithm = make().wrap(ditto(lam=0.1, weighting="samples"))
    run = partial(federation, make_data, make_federation, algorithm, sizes=[8, 8, 8], rounds=1)
    fused = assert_engines_agree(run, stack=3)
    assert not fused.server["buffers"]


def test_without_noise_and_bound_it_is_plain_training(make_data, make_federation):
    plain = fedprox(mu=0.3, weighting="uniform")
    weights = [
        ran(federation(make_data, make_federation, algorithm), EagerTraining).weights()
        for algorithm in (plain, make(**WITHOUT).wrap(plain))
    ]
    torch.testing.assert_close(*weights, rtol=1e-6, atol=1e-9)


def test_noise_of_a_step(make_data, make_federation):
    """With a rate of 1 and a tiny bound, a step moves by noise of z * C / batch size."""
    algorithm = make(clip_norm=1e-6, noise_multiplier=5e5).wrap(fedavg(weighting="samples"))
    model = nn.Linear(5, 400)
    run = make_federation(
        make_data([4], num_classes=400), model, algorithm=algorithm, lr=1.0, batching=Batching(4)
    )
    ran(run, EagerTraining)
    moves = [b - a for a, b in zip(leaves(run.initial), leaves(run.weights()), strict=True)]
    vector = torch.cat([move.flatten() for move in moves])
    assert float(vector.std()) == pytest.approx(0.5 / 4, rel=0.05)
    assert abs(float(vector.mean())) < 0.01


def test_epsilon_counts_passes():
    """Two epochs are as many mechanisms as two rounds; local steps are passes at worst."""
    once, twice = make(), make(local_epochs=2)
    assert once.epsilon(2) == twice.epsilon(1) < twice.epsilon(2)
    assert make(local_epochs=None, local_steps=2).epsilon(1) == twice.epsilon(1)
    turns = Participation("cyclic", 4, 1, 1)
    assert make(participation=turns).epsilon(4) == once.epsilon(1)
    assert once.unit == "example" and once.adjacency == "zero out"
    assert 7.9 < make(noise_multiplier=None, epsilon=8.0).epsilon(2) <= 8


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        (fedsam(rho=0.1, weighting="samples"), "no gradient of an objective"),
        (Algorithm(name="pairs", separable=False), "compares the examples"),
        (Algorithm(name="twice", stages=(LocalStage(), LocalStage())), "trains in 2 stages"),
        (Algorithm(name="epochs", stages=(LocalStage(epochs=3),)), "own number of local epochs"),
        (fedlc(tau=1.0, weighting="samples"), "examples of each class"),
    ],
)
def test_algorithms_that_are_refused(algorithm, reason):
    found = capabilities_of(algorithm, read_weights(nn.Linear(2, 2)))
    assert reason in found.breaks["one objective"]
    assert "one objective" in make().capabilities.needs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 1.0}, "privacy.noise_multiplier=1.0 with privacy.epsilon=1.0"),
        ({"clip_norm": None}, "privacy.clip_norm=null"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_models_that_mix_examples_are_refused():
    mixing = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with pytest.raises(
        ValueError, match=r"layer 1 of the model is a BatchNorm1d.*model.norm=group"
    ):
        check_independent(mixing)
    mixing[1].requires_grad_(requires_grad=False)  # as bn=frozen does
    check_independent(mixing)
    check_independent(cnn())
