"""Our kernels compute what torch's operators do."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sizes = st.integers(1, 70)
shapes = st.tuples(st.sampled_from([None, 1, 3]), st.integers(1, 23), sizes, sizes)
near = {"rtol": 1e-5, "atol": 1e-4}


def drawn(shape, seed=0):
    """x [.., M, K], w [.., N, K], bias [.., N], g [.., M, N]."""
    clients, m, k, n = shape
    rng = torch.Generator().manual_seed(seed)
    lead = () if clients is None else (clients,)
    return [torch.randn(*lead, *s, generator=rng) for s in [(m, k), (n, k), (n,), (m, n)]]


@settings(deadline=None, max_examples=40)
@given(shapes, st.booleans(), st.booleans())
def test_linear(kernels, shape, with_bias, relu):
    x, w, bias, _ = drawn(shape)
    expected = x @ w.mT + (bias.unsqueeze(-2) if with_bias else 0)
    expected = expected.relu() if relu else expected
    found = kernels.linear(x, w, bias if with_bias else None, relu)
    torch.testing.assert_close(found, expected, **near)


@settings(deadline=None, max_examples=40)
@given(shapes, st.booleans())
def test_input_gradient(kernels, shape, masked):
    x, w, _, g = drawn(shape)
    expected = g @ w
    expected = torch.where(x > 0, expected, 0) if masked else expected
    found = kernels.input_gradient(g, w, x if masked else None)
    torch.testing.assert_close(found, expected, **near)


@settings(deadline=None, max_examples=40)
@given(shapes, st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([-0.1, 1.0]))
def test_updates(kernels, shape, beta, alpha):
    x, w, bias, g = drawn(shape)
    expected = beta * w + alpha * (g.mT @ x), bias + alpha * g.sum(-2)
    kernels.weight_update_(w, g, x, beta, alpha)
    kernels.bias_update_(bias, g, alpha)
    torch.testing.assert_close((w, bias), expected, **near)


@settings(deadline=None, max_examples=40)
@given(shapes, st.sampled_from([None, 0.25]))
def test_updates_that_pull_towards_an_anchor(kernels, shape, share):
    x, w, _, g = drawn(shape)
    anchor, part = drawn(shape, seed=1)[1], 1.0 if share is None else share
    expected = w - 0.1 * (g.mT @ x) + part * (anchor - w)
    given = None if share is None else torch.tensor(share, dtype=torch.float64)
    kernels.weight_update_(w, g, x, 1.0, -0.1, anchor, given)
    torch.testing.assert_close(w, expected, **near)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000))
def test_squared_distance(kernels, num):
    left, right = torch.randn(2, num)
    expected = (left - right).double().square().sum().float()
    torch.testing.assert_close(kernels.squared_distance(left, right), expected, rtol=1e-6, atol=0)


def test_rows_may_lie_anywhere(kernels):
    x, w, bias, g = drawn((None, 6, 5, 4))
    wide = torch.randn(6, 10)
    torch.testing.assert_close(
        kernels.linear(wide[:, ::2], w, bias, relu=False), wide[:, ::2] @ w.T + bias, **near
    )
    torch.testing.assert_close(kernels.input_gradient(g.T.contiguous().T, w, x), (g @ w) * (x > 0))


def test_numbers_that_are_none_stay_visible(kernels):
    x, w, bias, g = drawn((None, 3, 4, 2))
    x[1, 2] = float("nan")
    assert kernels.linear(x, w, bias, relu=True)[1].isnan().all()
    kernels.weight_update_(w, g, x, 1.0, 1.0)
    assert w[:, 2].isnan().all()


@pytest.mark.parametrize("wrong", ["rows", "type", "layout"])
def test_other_tensors_are_refused(kernels, wrong):
    x, w, bias, _ = drawn((None, 3, 4, 2))
    x = x[:, :3] if wrong == "rows" else x.double() if wrong == "type" else x
    w = torch.randn(4, 2).T if wrong == "layout" else w
    with pytest.raises(RuntimeError, match="flfast::linear"):
        kernels.linear(x, w, bias, relu=False)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 23), st.integers(1, 30))
def test_cross_entropy_and_its_gradient(kernels, num, num_classes):
    logits, _, _, _ = drawn((None, num, num_classes, 1))
    logits = (10 * logits).requires_grad_()
    targets = torch.arange(num) % num_classes
    expected = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    expected.backward(g := torch.rand(num))
    losses, shares = kernels.cross_entropy(logits.detach(), targets)
    torch.testing.assert_close(losses, expected.detach(), **near)
    found = kernels.cross_entropy_gradient(g, shares, targets)
    torch.testing.assert_close(found, logits.grad, rtol=1e-5, atol=1e-6)


def test_nan_is_not_hidden(kernels):
    x, w, bias, _ = drawn((None, 6, 5, 9))
    x[2, 3] = float("nan")
    found = kernels.linear(x, w, bias, True)  # noqa: FBT003 - relu
    assert found[2].isnan().all()
    assert found[[0, 1, 3, 4, 5]].isfinite().all()
    losses, shares = kernels.cross_entropy(found, torch.zeros(6, dtype=torch.int64))
    assert losses.isnan().tolist() == shares.isnan().all(1).tolist() == [i == 2 for i in range(6)]


def test_a_target_that_is_no_class_is_an_error(kernels):
    with pytest.raises(IndexError, match="Target 3 is out of bounds"):
        kernels.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3]))
