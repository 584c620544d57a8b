"""FedDecorr against its equations in NumPy, its limit, and batches of any size."""

from functools import partial

import numpy as np
import pytest
import torch
from algorithms_by_name import assert_rounds_follow, federation_of, server_of
from engine_runs import assert_engines_agree, engine_of, mlp
from mlp_reference import Data, features, grad, mean, plus
from sampling import others_slow

from flfast.state.plan import Batching
from flfast.zoo.algorithms.feddecorr import mean_squared_correlation

SIZES, BATCH, EPOCHS, LR = (7, 1, 5), 3, 2, 0.2


def penalty_gradient(z, beta):
    """Gradient of beta / d^2 * |K|_F^2 with respect to features [N, d], by hand."""
    num, dims = z.shape
    centred = z - z.mean(0)
    scale = 1 / np.sqrt((centred**2).mean(0) + 1e-8)
    scores = centred * scale
    correlation = scores.T @ scores / num
    of_scores = beta / dims**2 * 4 * scores @ correlation / num
    of_centred = scale * of_scores - scale**3 * centred * (of_scores * centred).mean(0)
    return of_centred - of_centred.mean(0)


def shi(reference, w, cohorts, *, beta):
    """FedDecorr of Shi et al. 2023: yields the server's parameters after every round."""
    data, w = Data(reference.data), {name: leaf.numpy() for name, leaf in w.items()}
    for r, _ in enumerate(cohorts, start=1):
        models = []
        for k in range(len(SIZES)):
            w_k = w
            for e in range(EPOCHS):
                inputs, targets = data.epoch(k, r, e)
                for at in range(0, len(targets), BATCH):
                    x, y = inputs[at : at + BATCH], targets[at : at + BATCH]
                    extra = penalty_gradient(features(w_k, x), beta)
                    w_k = plus(w_k, grad(w_k, x, y, of_features=extra), -LR)
            models.append(w_k)
        w = mean(models, SIZES)
        yield w


@pytest.fixture
def federation(make_data, make_federation):
    def federation(name, *, rounds=3, **algorithm):
        return federation_of(
            make_data,
            make_federation,
            name,
            mlp().double(),
            sizes=SIZES,
            rounds=rounds,
            lr=LR,
            local_epochs=EPOCHS,
            batching=Batching(BATCH),
            algorithm=algorithm,
        )

    return federation


@pytest.mark.parametrize("beta", [0.1, 6.0])
def test_trajectories_follow_the_paper(federation, beta):
    """Local steps have three examples, two, or one."""
    found = federation("feddecorr", rounds=4, beta=beta)
    expected = assert_rounds_follow(found, server_of, partial(shi, beta=beta))
    plain = assert_rounds_follow(federation("fedavg", rounds=4), server_of, partial(shi, beta=0.0))
    assert max(abs(expected[-1][n] - leaf).max() for n, leaf in plain[-1].items()) > 1e-3


@pytest.mark.parametrize("stack", others_slow([1, "auto"], [1]))
def test_engines_agree_on_batches_of_unequal_sizes(federation, stack):
    """A padded batch would have other correlations."""
    assert_engines_agree(lambda: federation("feddecorr", beta=6.0), stack=stack)


@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (5, 5), (2, 3)])
def test_the_penalty_is_the_mean_square_of_numpys_correlations(shape):
    values = 100 * np.random.default_rng(0).normal(size=shape)
    expected = (np.corrcoef(values, rowvar=False) ** 2).mean()
    found = mean_squared_correlation(torch.from_numpy(values))
    assert float(found) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("num", [1, 3])
def test_constant_features_have_no_correlation_and_no_gradient(num, dtype):
    values = torch.full((num, 4), 2.0, dtype=dtype, requires_grad=True)
    penalty = mean_squared_correlation(values)
    penalty.backward()
    assert penalty == 0
    assert not values.grad.any()


def test_batches_are_not_split(federation):
    found = federation("feddecorr")
    plan = found.plans(1, [])._replace(batching=Batching(4, micro_batch=2))
    with pytest.raises(ValueError, match="algorithm=feddecorr needs whole batches"):
        engine_of(found).choose(plan)
