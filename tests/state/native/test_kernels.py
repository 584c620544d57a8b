"""Our kernels compute what torch's operators do."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

sizes = st.integers(1, 70)
shapes = st.tuples(st.sampled_from([None, 1, 3]), st.integers(1, 23), sizes, sizes)
near = {"rtol": 1e-5, "atol": 1e-4}


def drawn(shape, seed=0):
    """x [.., M, K], w [.., N, K], bias [.., N], g [.., M, N]."""
    clients, m, k, n = shape
    rng = torch.Generator().manual_seed(seed)
    lead = () if clients is None else (clients,)
    return [torch.randn(*lead, *s, generator=rng) for s in [(m, k), (n, k), (n,), (m, n)]]


@settings(deadline=None, max_examples=18)
@given(shapes, st.booleans(), st.booleans())
def test_linear(kernels, shape, with_bias, relu):
    x, w, bias, _ = drawn(shape)
    expected = x @ w.mT + (bias.unsqueeze(-2) if with_bias else 0)
    expected = expected.relu() if relu else expected
    found = kernels.linear(x, w, bias if with_bias else None, relu)
    torch.testing.assert_close(found, expected, **near)


@settings(deadline=None, max_examples=18)
@given(shapes, st.booleans())
def test_input_gradient(kernels, shape, masked):
    x, w, _, g = drawn(shape)
    expected = g @ w
    expected = torch.where(x > 0, expected, 0) if masked else expected
    found = kernels.input_gradient(g, w, x if masked else None)
    torch.testing.assert_close(found, expected, **near)


@settings(deadline=None, max_examples=18)
@given(shapes, st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([-0.1, 1.0]))
def test_updates(kernels, shape, beta, alpha):
    x, w, bias, g = drawn(shape)
    expected = beta * w + alpha * (g.mT @ x), bias + alpha * g.sum(-2)
    kernels.weight_update_(w, g, x, beta, alpha)
    kernels.bias_update_(bias, g, alpha)
    torch.testing.assert_close((w, bias), expected, **near)


@settings(deadline=None, max_examples=18)
@given(shapes, st.sampled_from([None, 0.25]))
def test_updates_that_pull_towards_an_anchor(kernels, shape, share):
    x, w, _, g = drawn(shape)
    anchor, part = drawn(shape, seed=1)[1], 1.0 if share is None else share
    expected = w - 0.1 * (g.mT @ x) + part * (anchor - w)
    given = None if share is None else torch.tensor(share, dtype=torch.float64)
    kernels.weight_update_(w, g, x, 1.0, -0.1, anchor, given)
    torch.testing.assert_close(w, expected, **near)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10_000))
def test_squared_distance(kernels, num):
    left, right = torch.randn(2, num)
    expected = (left - right).double().square().sum().float()
    torch.testing.assert_close(kernels.squared_distance(left, right), expected, rtol=1e-6, atol=0)


images = st.tuples(*(st.integers(1, most) for most in (3, 5, 12, 14)))  # B, C, H, W
windows = st.tuples(*(st.integers(1, most) for most in (40, 6, 6)))  # O, KH, KW
paddings = st.tuples(st.integers(0, 2), st.integers(0, 2))


def pooled(x, w, bias, padding):
    """What conv_pool computes, and the place of each maximum in its window of four."""
    outputs = F.conv2d(x, w, bias, padding=padding)
    values, at = F.max_pool2d(outputs, 2, return_indices=True)
    wide = outputs.shape[-1]
    return values.relu(), at // wide % 2 * 2 + at % wide % 2


@settings(deadline=None, max_examples=25)
@given(images, windows, paddings, st.tuples(st.booleans(), st.booleans()), st.integers(0, 99))
def test_pooled_convolutions(kernels, image, window, padding, kind, seed):
    (batch, channels, *sides), (out, *kernel), (with_bias, dense) = image, window, kind
    assume(all(s + 2 * p > k for s, p, k in zip(sides, padding, kernel, strict=True)))
    rng = torch.Generator().manual_seed(seed)
    # Whole numbers are exact and have ties. Zeros in front of the ReLU are many.
    x, w, bias = (
        torch.randint(-2, 3, shape, generator=rng).double().requires_grad_()
        for shape in [(batch, channels, *sides), (out, channels, *kernel), (out,)]
    )
    expected, places = pooled(x, w, bias if with_bias else None, padding)
    g = torch.randint(-2, 3, expected.shape, generator=rng).double()
    wanted = [x, w, bias] if with_bias else [x, w]
    grads = torch.autograd.grad(expected, wanted, g)
    layout = torch.contiguous_format if dense else torch.channels_last
    x, w, g = (leaf.detach().float().contiguous(memory_format=layout) for leaf in (x, w, g))
    bias = bias.detach().float()
    y, at = kernels.conv_pool(x, w, bias if with_bias else None, padding)
    torch.testing.assert_close((y, at.long()), (expected.float(), places), rtol=0, atol=0)
    found = kernels.conv_pool_backward(g, y, at, x, w, padding, True)  # noqa: FBT003
    exact = [grad.float() for grad in grads]
    torch.testing.assert_close([*found[: len(exact)]], exact, rtol=0, atol=0)
    first, *rest = kernels.conv_pool_backward(g, y, at, x, w, padding, False)  # noqa: FBT003
    assert first is None or not first.numel()
    torch.testing.assert_close(rest, [*found[1:]], rtol=0, atol=0)


@pytest.mark.parametrize("shape", ["10 1 28 32 5", "3 32 12 64 5", "2 32 30 64 3", "8 6 14 16 5"])
def test_pooled_convolutions_of_any_numbers(kernels, shape):
    """Shapes whose vectors, tiles and blocks are full, and have rests."""
    batch, channels, side, out, kernel = map(int, shape.split())
    x, w, bias = (
        leaf.double().requires_grad_()
        for leaf in (
            torch.randn(batch, channels, side, side),
            torch.randn(out, channels, kernel, kernel) / (channels * kernel**2) ** 0.5,
            torch.randn(out),
        )
    )
    expected, _ = pooled(x, w, bias, 0)
    g = torch.randn(expected.shape)
    near = {"rtol": 1e-4, "atol": 1e-5 * g.numel() ** 0.5}
    grads = torch.autograd.grad(expected, (x, w, bias), g.double())
    x, w, bias = (leaf.detach().float() for leaf in (x, w, bias))
    y, at = kernels.conv_pool(x, w, bias, [0, 0])
    torch.testing.assert_close(y, expected.float(), rtol=1e-5, atol=1e-5)
    found = kernels.conv_pool_backward(g, y, at, x, w, [0, 0], True)  # noqa: FBT003
    torch.testing.assert_close([*found], [grad.float() for grad in grads], **near)


def test_nan_stays_in_a_pooled_convolution(kernels):
    x = torch.ones(1, 1, 4, 4)
    x[0, 0, 3, 3] = torch.nan
    y, _ = kernels.conv_pool(x, torch.ones(3, 1, 1, 1), None, [0, 0])
    assert y[0, 0].isnan().tolist() == [[False, False], [False, True]]


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


@settings(deadline=None, max_examples=10)
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


@settings(deadline=None, max_examples=18)
@given(shapes)
def test_products_within_a_pass(kernels, shape):
    x, w, _, g = drawn(shape)
    product = g.mT @ x
    # w - product * 0.5; registers: product and result, w, the product, one of scratch, 0.5
    code = [2, 4, 3, 5, 1, 1, 2, 4]
    found = kernels.pointwise([w], [], [g, x], [], [0.5], code, 2, 1, 1)
    torch.testing.assert_close(found, [product, w - 0.5 * product], **near)


def test_a_pass_takes_tensors_of_other_layouts(kernels):
    x = torch.randn(2, 3, 5, 5)
    y = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)
    (found,) = kernels.pointwise([x, y], [], [], [], [], [1, 0, 1, 2], 1, 0, 0)
    assert torch.equal(found, x - y)
    with pytest.raises(RuntimeError, match="one shape and layout"):
        kernels.pointwise([], [x, y], [], [], [], [1, 0, 1, 0], 0, 0, 0)
