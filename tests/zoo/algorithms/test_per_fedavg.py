"""Per-FedAvg's meta-gradients against each other, on both engines."""

import pytest
import torch
from algorithms_by_name import algorithm_of, federation_of
from engine_runs import assert_engines_agree, engine_of, mlp, net, with_batchnorm
from sampling import others_slow
from torch import nn

from flfast.algorithms.kit.gradient import hessian_product, shifted
from flfast.datamodules.batches import Batch
from flfast.lit.task import LocalTask
from flfast.state.plan import Batching

ALPHA, STEPS = 0.02, 10


def way(gradients, *, activation=nn.Tanh, dtype=torch.float64, scale=1.0, **options):
    """Where local training on one full batch ends, relative to its start; float64 [P]."""
    model = net(lambda: nn.Linear(20, 8), activation, lambda: nn.Linear(8, 4)).to(dtype)
    rng = torch.Generator().manual_seed(2)
    inputs = scale * torch.randn(60, 20, generator=rng, dtype=torch.float64)
    targets = torch.randint(4, (60,), generator=rng)
    batch = Batch(inputs.to(dtype), targets)
    options = {"alpha": ALPHA, "batches": "same", "gradients": gradients, **options}
    algorithm, task = algorithm_of("per_fedavg", model, **options), LocalTask(model)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    w = start
    for _ in range(STEPS):
        point = {n: p.detach().requires_grad_() for n, p in w.items()}
        _, grads = algorithm.gradient(task, point, batch, None)
        w = shifted(w, grads, -ALPHA)
    return torch.cat([(w[n] - start[n]).double().flatten() for n in start])


def error(found, exact):
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    ("dtype", "options", "largest"),
    [
        (torch.float32, {}, 2e-4),
        (torch.float64, {}, 2e-4),
        (torch.float64, {"delta": 1e-5}, 1e-9),
    ],
)
@pytest.mark.parametrize("scale", others_slow([0.1, 1.0, 3.0], [3.0]))
def test_finite_differences_are_accurate_on_smooth_models(dtype, options, largest, scale):
    exact = way("exact", scale=scale)
    assert error(way("hessian_free", dtype=dtype, scale=scale, **options), exact) < largest
    assert error(way("exact", dtype=dtype, scale=scale), exact) < 1e-5
    assert error(way("first_order", scale=scale), exact) > 5 * largest


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("factor", [1e-4, 1e4])
def test_the_finite_difference_does_not_depend_on_the_size_of_gradients(activation, factor):
    """A multiple of the loss, with alpha divided by it, has that multiple of the meta-gradient."""
    model = net(lambda: nn.Linear(5, 8), activation, lambda: nn.Linear(8, 3)).double()
    batch = Batch(torch.randn(9, 5).double(), torch.arange(9) % 3)
    params, task = dict(model.named_parameters()), LocalTask(model)

    def meta(factor):
        algorithm = algorithm_of(
            "per_fedavg", model, alpha=0.1 / factor, gradients="hessian_free", batches="same"
        )
        return algorithm.gradient(lambda *given: factor * task(*given), params, batch, None)[1]

    expected = {name: factor * grad for name, grad in meta(1.0).items()}
    torch.testing.assert_close(meta(factor), expected, rtol=1e-8, atol=1e-12)


def test_a_gradient_of_zero_stays_zero():
    model = net(lambda: nn.Linear(5, 3)).double()
    params, batch = (
        dict(model.named_parameters()),
        Batch(torch.ones(9, 5).double(), torch.zeros(9)),
    )
    algorithm = algorithm_of("per_fedavg", model, gradients="hessian_free")

    def constant(params, _):
        return sum(0 * p.sum() for p in params.values())

    _, grads = algorithm.gradient(constant, params, batch, None)
    assert all(not grad.any() for grad in grads.values())


def test_the_hessian_product_is_that_of_the_whole_hessian():
    model = net(lambda: nn.Linear(5, 3)).double()
    params, task = dict(model.named_parameters()), LocalTask(model)
    batch = Batch(torch.randn(6, 5).double(), torch.tensor([0, 1, 2, 0, 1, 2]))
    direction = {n: torch.randn_like(p) for n, p in params.items()}

    named = {f"0.{n}": n for n in ("weight", "bias")}
    hessian = torch.autograd.functional.hessian(
        lambda weight, bias: task({"0.weight": weight, "0.bias": bias}, batch),
        tuple(params[n] for n in named),
    )
    found = hessian_product(task, params, batch, direction, trained=params)
    for row, name in zip(hessian, named, strict=True):
        expected = sum(
            block.flatten(params[name].ndim) @ direction[other].flatten()
            for block, other in zip(row, named, strict=True)
        )
        torch.testing.assert_close(found[name], expected)
        assert not found[name].requires_grad


RUNS = [("hessian_free", mlp, 3), ("exact", with_batchnorm, 1), ("exact", mlp, 3)]


@pytest.mark.parametrize(("gradients", "model", "stack"), others_slow(RUNS, RUNS[1:2]))
def test_engines_agree_on_stacks_and_exact_gradients(
    gradients, model, stack, make_data, make_federation
):
    def make():
        return federation_of(
            make_data,
            make_federation,
            "per_fedavg",
            model(),
            sizes=(7, 6, 9),
            rounds=2,
            local_epochs=2,
            batching=Batching(6, drop_single=True),
            algorithm={"alpha": 0.3, "gradients": gradients},
        )

    found = assert_engines_agree(make, stack=stack)
    assert engine_of(found).choose(found.plans(1, [])) == "fused"
