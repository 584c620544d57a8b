"""Cross-entropy and Dice of masks against their definitions; counts of pixels that add up."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import grad, vmap
from torch.nn import functional as F

from flfast.tasks.segmentation import SEGMENTATION, main_classes, segmentation
from flfast.tasks.task_type import IGNORED

seeds = st.integers(0, 999)
shapes = st.tuples(st.integers(1, 6), st.integers(2, 4), st.integers(1, 5), st.integers(1, 5))


def draw(shape, seed, *, ignored=0.3):
    """Logits [B, C, H, W] and masks; some pixels are ignored, but never the first one."""
    num, num_classes, height, width = shape
    rng = torch.Generator().manual_seed(seed)
    masks = torch.randint(num_classes, (num, height, width), generator=rng)
    masks[torch.rand(masks.shape, generator=rng) < ignored] = IGNORED
    masks[:, 0, 0] = 1
    return torch.randn(shape, generator=rng), masks


def loss_of(logits, mask, weight):
    """The loss of one image, [C, H, W] and [H, W], by loops over pixels and classes."""
    exponentials = np.exp(logits.double().numpy())
    chances = exponentials / exponentials.sum(axis=0)
    places = [place for place in np.ndindex(*mask.shape) if mask[place] != IGNORED]
    entropy = -np.mean([np.log(chances[(int(mask[place]), *place)]) for place in places])
    coefficients = []
    for number in range(1, len(chances)):
        p = np.array([chances[(number, *place)] for place in places])
        g = np.array([float(mask[place] == number) for place in places])
        coefficients.append((2 * (p * g).sum() + 1) / ((p * p).sum() + (g * g).sum() + 1))
    return entropy + weight * (1 - np.mean(coefficients))


@given(shapes, seeds, st.sampled_from([0.0, 0.5, 1.0]))
def test_the_loss_is_cross_entropy_plus_soft_dice_of_each_image(shape, seed, weight):
    logits, masks = draw(shape, seed)
    expected = [loss_of(*pair, weight) for pair in zip(logits, masks, strict=True)]
    task = segmentation(weight)
    assert task.losses(logits, masks).tolist() == pytest.approx(expected, rel=1e-5)
    assert task.loss(logits, masks).item() == pytest.approx(np.mean(expected), rel=1e-5)
    if weight == 0:
        flat = F.cross_entropy(logits, masks, ignore_index=IGNORED, reduction="none").sum((1, 2))
        found = flat / (masks >= 0).sum((1, 2))
        assert task.losses(logits, masks).tolist() == pytest.approx(found.tolist(), rel=1e-5)


@given(shapes, seeds)
def test_gradients_of_bytes_and_of_a_stack_are_those_of_single_batches(shape, seed):
    logits, masks = draw(shape, seed, ignored=0)
    gradient = grad(SEGMENTATION.loss)
    found = gradient(logits, masks)
    assert found.isfinite().all()
    torch.testing.assert_close(gradient(logits, masks.byte()), found)
    stack = vmap(gradient)(torch.stack([logits, 2 * logits]), torch.stack([masks, masks]))
    torch.testing.assert_close(stack[0], found)
    torch.testing.assert_close(stack[1], gradient(2 * logits, masks))


def test_a_wrong_pixel_that_is_ignored_changes_nothing():
    logits, masks = draw((1, 3, 4, 4), 0, ignored=0)
    masks[0, 2, 3] = IGNORED
    other = logits.clone()
    other[0, :, 2, 3] = torch.tensor([9.0, -9.0, 0.0])
    for task in (segmentation(0.0), SEGMENTATION):
        assert torch.equal(task.losses(logits, masks), task.losses(other, masks))
        both = (task.statistics(given, masks) for given in (logits, other))
        first, second = ({k: v for k, v in one.items() if k != "loss"} for one in both)
        assert all(torch.equal(first[name], second[name]) for name in first)


@given(shapes, seeds)
def test_dice_and_iou_are_those_of_torchmetrics_over_all_pixels(shape, seed):
    from torchmetrics.functional import classification

    logits, masks = draw(shape, seed)
    found = SEGMENTATION.by_group(
        SEGMENTATION.statistics(logits, masks), torch.zeros(shape[0], dtype=torch.int64), 1
    )
    flat = logits.argmax(dim=1).flatten(), masks.flatten()
    options = {"num_classes": shape[1], "average": None, "ignore_index": IGNORED}
    there = [c for c in range(1, shape[1]) if any((x[flat[1] >= 0] == c).any() for x in flat)]
    dice = classification.multiclass_f1_score(*flat, **options)[there].mean()
    iou = classification.multiclass_jaccard_index(*flat, **options)[there].mean()
    assert found["dice"].item() == pytest.approx(dice.item(), rel=1e-5)
    assert found["iou"].item() == pytest.approx(iou.item(), rel=1e-5)
    if (masks >= 0).all():
        right = (flat[0] == flat[1]).double().mean().item()
        assert found["pixel_accuracy"].item() == pytest.approx(right)


@given(shapes, seeds, st.integers(1, 5))
def test_statistics_of_batches_in_any_order_give_the_metrics_of_the_whole_set(shape, seed, size):
    logits, masks = draw(shape, seed)
    whole = SEGMENTATION.statistics(logits, masks)
    order = torch.randperm(len(masks), generator=torch.Generator().manual_seed(seed))
    parts = [
        SEGMENTATION.statistics(logits[places], masks[places]) for places in order.split(size)
    ]
    joined = {name: torch.cat([part[name] for part in parts]) for name in whole}
    group = torch.arange(len(masks)) % 2
    expected = SEGMENTATION.by_group(whole, group, 3)
    found = SEGMENTATION.by_group(joined, group[order], 3)
    for name in SEGMENTATION.metrics:
        assert math.isnan(found[name][2]), "a client without examples"
        exact = name in {"dice", "iou"}  # of whole numbers of pixels
        tolerance = {"rtol": 0, "atol": 0} if exact else {}
        torch.testing.assert_close(found[name], expected[name], equal_nan=True, **tolerance)


def test_dice_by_hand():
    masks = torch.tensor([[[0, 1, 1, 2]]])
    logits = F.one_hot(torch.tensor([[[0, 1, 2, 2]]]), 4).movedim(-1, 1).float()
    found = SEGMENTATION.by_group(
        SEGMENTATION.statistics(logits, masks), torch.zeros(1, dtype=torch.int64), 1
    )
    assert found["dice"].item() == pytest.approx((2 / 3 + 2 / 3) / 2)  # class 3 is nowhere
    assert found["iou"].item() == pytest.approx(1 / 2)
    assert found["pixel_accuracy"].item() == pytest.approx(3 / 4)


def test_the_main_class_of_a_mask_is_no_background():
    masks = torch.tensor([[[0, 0, 0, 2]], [[0, 0, 0, 0]], [[1, 2, 2, IGNORED]]], dtype=torch.int16)
    assert main_classes(masks).tolist() == [2, 0, 2]


@pytest.mark.parametrize(
    ("masks", "num_classes", "message"),
    [
        (torch.zeros(2, 3), 2, "must be integers [N, H, W], got float32 [2, 3]"),
        (torch.zeros(2, 3, 3, dtype=torch.int64), 1, "the background and at least one class"),
        (torch.tensor([[[0, 1]], [[0, 2]]]), 2, "example 1 (the first is 0) has the value 2"),
        (torch.tensor([[[0, -1]]]), 2, "value -1 in row 0, column 1; allowed: 0 to 1, or -100"),
        (torch.tensor([[[0]], [[IGNORED]]]), 2, "example 1 has no target: all of its pixels"),
    ],
)
def test_wrong_masks_are_refused(masks, num_classes, message):
    with pytest.raises(ValueError) as error:
        SEGMENTATION.check_targets(masks, num_classes)
    assert message in str(error.value)
