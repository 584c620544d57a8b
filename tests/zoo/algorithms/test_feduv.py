"""FedUV against its equations in plain torch, its limits, and batches of any size."""

from functools import partial

import pytest
import torch
from algorithms_by_name import assert_rounds_follow, federation_of, server_of
from engine_runs import assert_engines_agree, engine_of, mlp
from torch.nn import functional as F

from flfast.engines.eager import EagerTraining
from flfast.engines.fused.training import FusedTraining
from flfast.state.plan import Batching
from flfast.zoo.algorithms.feduv import lack_of_variance, nearness

SIZES, LR, EPOCHS, ROUNDS = (7, 1, 5), 0.2, 2, 4
OPTIONS = {"variance": 2.0, "uniformity": 3.0}


def uniformity(z):
    """The authors' form, with a selection of the distances."""
    if len(z) == 1:
        return 0
    pairs = [(z[i] - z[j]).square().sum() for i in range(len(z)) for j in range(i)]
    far = torch.stack(pairs)
    return torch.exp(-far / far[far != 0].median()).mean()


def son(reference, w, cohorts, *, variance, uniformity_weight):
    """FedUV of Son et al. 2024: yields the server's parameters after every round."""
    for round_idx, cohort in enumerate(cohorts, start=1):
        done = {}
        for k in cohort:
            w_k = w
            for step in reference.steps(k, round_idx):
                x, y = map(torch.as_tensor, step)
                w_k = {n: p.detach().requires_grad_() for n, p in w_k.items()}
                z = torch.tanh(x @ w_k["0.weight"].T + w_k["0.bias"])
                logits = z @ w_k["2.weight"].T + w_k["2.bias"]
                loss = F.cross_entropy(logits, y) + uniformity_weight * uniformity(z)
                if len(y) > 1:
                    sigma = torch.eye(3).double().std(0)
                    lack = F.relu(sigma - F.softmax(logits, 1).std(0))
                    loss = loss + variance * lack.mean()
                grads = torch.autograd.grad(loss, [*w_k.values()])
                w_k = {n: (w_k[n] - LR * g).detach() for n, g in zip(w_k, grads, strict=True)}
            done[k] = w_k
        w = reference.mean(done) if done else w
        yield w


@pytest.fixture
def federation(make_data, make_federation):
    def federation(name="feduv", **options):
        return federation_of(
            *(make_data, make_federation, name, mlp().double()),
            sizes=SIZES,
            rounds=options.pop("rounds", ROUNDS),
            lr=LR,
            local_epochs=EPOCHS,
            batching=Batching(options.pop("batch_size", 3)),
            **options,
        )

    return federation


@pytest.mark.parametrize(
    ("batch_size", "sampling", "engine"),
    [(3, {}, FusedTraining), (-1, {"fraction": 0.7}, EagerTraining)],
)
def test_trajectories_follow_the_paper(federation, batch_size, sampling, engine):
    """Local steps have three examples, two, or one; or seven, five, and one."""
    found = federation(batch_size=batch_size, sampling=sampling, algorithm=OPTIONS)
    equations = partial(son, variance=2.0, uniformity_weight=3.0)
    expected = assert_rounds_follow(found, server_of, equations, engine=engine)
    plain = partial(son, variance=0.0, uniformity_weight=0.0)
    fedavg = assert_rounds_follow(
        federation("fedavg", batch_size=batch_size, sampling=sampling), server_of, plain
    )
    assert max(abs(expected[-1][n] - leaf).max() for n, leaf in fedavg[-1].items()) > 1e-3


@pytest.mark.slow
def test_stacks_agree_with_single_clients(federation):
    assert_engines_agree(lambda: federation(rounds=2, algorithm=OPTIONS), stack=3)


def equal_rows(num):
    points = torch.randn(num, 4, generator=torch.Generator().manual_seed(num)).double()
    return torch.cat([points, points[: num // 2]]).requires_grad_()


@pytest.mark.parametrize("num", [2, 3, 4, 7])
def test_the_median_is_that_of_the_distances_that_are_not_zero(num):
    left, right = equal_rows(num), equal_rows(num)
    found, expected = nearness(left), uniformity(right)
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    grads = (torch.autograd.grad(value, z)[0] for value, z in [(found, left), (expected, right)])
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-12)


def test_penalties_of_several_clients_are_those_of_each():
    points = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(0)).double()
    points[1, :3], points[2] = points[1, 3:], 1.0  # other numbers of zeros
    for penalty in (nearness, lack_of_variance):
        of_stack, of_each = torch.vmap(torch.func.grad(penalty))(points), []
        for own in points:
            own = own.clone().requires_grad_()
            of_each += torch.autograd.grad(penalty(own), own)
        torch.testing.assert_close(of_stack, torch.stack(of_each), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("num", [2, 3])
def test_equal_features_have_no_gradient(num):
    values = torch.full((num, 4), 2.0, requires_grad=True)
    penalty = nearness(values)
    penalty.backward()
    assert penalty == 1
    assert not values.grad.any()


def test_batches_are_not_split(federation):
    found = federation()
    plan = found.plans(1, [])._replace(batching=Batching(4, micro_batch=2))
    with pytest.raises(ValueError, match="algorithm=feduv needs whole batches"):
        engine_of(found).choose(plan)
