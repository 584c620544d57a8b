"""Images from gradients: exact where theory says so, and how images are paired."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flfast.algorithms.fedavg import fedavg
from flfast.datamodules.transforms import BatchTransform
from flfast.lit.local_module import LocalModule
from flfast.state.weights import read_weights
from flfast.zoo.audits.gradient_matching import (
    cosine_distance,
    match_gradient,
    surrogate_gradient,
    variation,
)
from flfast.zoo.audits.image_pairs import paired, pixel_bounds

SIDE, CLASSES = 4, 5
BOUNDS = (torch.full((1, 1, 1), -1.0), torch.full((1, 1, 1), 1.0))


def linear(noise=0.0, *, num=1, iterations=300):
    """PSNR, dB, of images of one step of a linear model whose gradient has noise."""
    torch.manual_seed(0)  # noqa: TID251 - a test's own model
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, CLASSES))
    module = LocalModule(model, fedavg(weighting="samples"), torch.optim.SGD)
    images, labels = torch.rand(num, 1, SIDE, SIDE) * 2 - 1, torch.arange(num)
    loss = nn.functional.cross_entropy(model(images), labels)
    target = dict(model.named_parameters())
    slopes = torch.autograd.grad(loss, list(target.values()))
    norm = torch.cat([slope.flatten() for slope in slopes]).norm()
    noisy = [slope + noise * norm * torch.randn_like(slope) for slope in slopes]
    gradient = surrogate_gradient(module, read_weights(model), target, labels)
    for own, slope in zip(gradient(images), slopes, strict=True):
        torch.testing.assert_close(own, slope)
    found, distance = match_gradient(
        gradient,
        noisy,
        bounds=BOUNDS,
        start=torch.randn(images.shape, generator=torch.Generator().manual_seed(1)),
        total_variation=0.0,
        iterations=iterations,
    )
    assert found.abs().max() <= 1
    pairs = paired(images, found, labels, labels, BOUNDS)
    return float(pairs.psnr.mean()), distance


@pytest.mark.slow
def test_one_example_of_a_linear_model_is_reconstructed_exactly_and_noise_hides_it():
    """The gradient by weights is (p - y) x^T, and by the bias p - y: it holds the image."""
    psnr, distance = linear()
    assert psnr > 30
    assert distance < 1e-4
    some, much = linear(noise=0.05)[0], linear(noise=1.0)[0]
    assert psnr > some > much
    assert much < 12


@given(st.integers(0, 99), st.floats(0.1, 10))
def test_the_distance_is_of_angles(seed, factor):
    rng = torch.Generator().manual_seed(seed)
    left, right = (
        [torch.randn(shape, generator=rng) for shape in ((3, 2), (4,))] for _ in range(2)
    )
    flat = [torch.cat([leaf.flatten() for leaf in leaves]) for leaves in (left, right)]
    expected = 1 - torch.cosine_similarity(*flat, dim=0)
    torch.testing.assert_close(cosine_distance(left, right), expected, atol=1e-5, rtol=0)
    scaled = [factor * leaf for leaf in left]
    assert float(cosine_distance(scaled, left)) == pytest.approx(0, abs=1e-5)
    assert float(cosine_distance([-leaf for leaf in left], left)) == pytest.approx(2, abs=1e-5)
    assert float(cosine_distance([0 * leaf for leaf in left], left)) == 1


def test_total_variation_is_the_mean_difference_of_neighbours():
    ramp = torch.arange(4.0).expand(1, 2, 3, 4)
    assert float(variation(ramp)) == 1
    assert float(variation(ramp.transpose(2, 3) * 2)) == 2
    assert float(variation(torch.ones(1, 1, 1, 1))) == 0


@given(st.permutations(range(4)), st.floats(0, 0.2))
def test_images_are_paired_whatever_their_order(order, error):
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(4, 1, 3, 3, generator=rng)
    low, high = torch.zeros(1, 1, 1), torch.full((1, 1, 1), 0.5)
    labels = torch.tensor([3, 1, 1, 0])
    found = paired(images, images[order] + error, labels, labels[order], (low, high))
    torch.testing.assert_close(found.reconstructed, found.originals + 2 * error)
    assert torch.equal(found.guessed, labels)
    assert found.num_right == 4
    torch.testing.assert_close(found.mse, torch.full((4,), (2 * error) ** 2), atol=1e-6, rtol=1e-3)
    other = paired(images, images, labels, torch.tensor([1, 3, 4, 4]), (low, high))
    assert other.num_right == 2


def test_the_range_of_pixels_is_that_of_the_type_or_of_the_images():
    transform = BatchTransform(mean=(0.5, 0.0), std=(0.5, 1.0))
    stored = torch.randint(3, 9, (2, 2, 3, 3), dtype=torch.uint8)
    low, high = pixel_bounds(stored, transform)
    assert low.flatten().tolist() == [-1, 0]
    assert high.flatten().tolist() == [1, 1]
    low, high = pixel_bounds(torch.tensor([[[[2.0, 5.0]]]]), BatchTransform())
    assert (float(low), float(high)) == (2, 5)
