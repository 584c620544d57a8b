import pytest
import torch
from torch import nn

from flfast.datamodules.batches import Batch
from flfast.engines.evaluation.personal_models import PersonalModels
from flfast.state.randomness import seed_torch
from flfast.state.weights import read_weights
from flfast.tasks.segmentation import SEGMENTATION
from flfast.zoo.models.unet import unet

OPTIONS = {"task": "segmentation", "width": 4, "depth": 2, "norm": "group", "groups": 2}


def build(shape=(1, 8, 12), num_classes=3, *, seed=0, **changes):
    seed_torch(seed, "initial weights")
    return unet(input_shape=shape, num_classes=num_classes, **OPTIONS | changes)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("shape", [(1, 8, 12), (3, 4, 4)])
def test_outputs_are_logits_of_every_pixel(shape, norm):
    model = build(shape, norm=norm).eval()
    outputs = model(torch.randn(2, *shape))
    assert outputs.shape == (2, 3, *shape[1:])
    kinds = {"batch": nn.BatchNorm2d, "group": nn.GroupNorm}
    found = {kind for kind in kinds.values() if any(isinstance(m, kind) for m in model.modules())}
    assert found == {kinds[norm]} - {None} if norm in kinds else not found


def test_the_skip_connections_keep_single_pixels_and_the_deepest_level_sees_all():
    model = build((1, 16, 16), depth=3, norm="none")
    image = torch.zeros(1, 1, 16, 16, requires_grad=True)
    model(image)[0, 1, 8, 8].backward()
    # Without levels, two 3x3 convolutions would see 5 pixels to each side at most.
    assert image.grad[0, 0, 0].abs().sum() > 0
    assert image.grad[0, 0, 8, 8] != 0


def test_the_widths_double_at_each_level():
    # Levels of 4, 8 and 16 channels, and two of the way up, which read a level and its skip.
    def block(first, last):
        return 9 * last * (first + last) + 2 * last

    down = block(1, 4) + block(4, 8) + block(8, 16)
    up = sum(4 * 2 * n * n + n + block(2 * n, n) for n in (4, 8))
    expected = down + up + 3 * 4 + 3
    assert sum(p.numel() for p in build(norm="none").parameters()) == expected


def test_every_parameter_gets_a_gradient_and_stacks_predict_alike():
    model, images = build(), torch.rand(5, 1, 8, 12)
    masks = torch.arange(5 * 8 * 12).view(5, 8, 12) % 3
    SEGMENTATION.loss(model(images), masks).backward()
    assert all(p.grad.any() for p in model.parameters())
    weights = {k: read_weights(build(seed=k)) for k in (1, 2)}
    batch = Batch(images, masks, owners=[(1, 2), (2, 3)])
    together, alone = (
        PersonalModels(build().eval(), SEGMENTATION, weights, vmapped=v) for v in (True, False)
    )
    torch.testing.assert_close(together(batch), alone(batch))
    assert together._vmapped


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "classification"}, "model=unet with task=classification"),
        ({"shape": (16,)}, "model=unet needs images"),
        ({"shape": (1, 8, 10)}, "model.depth=2 with images of 8 x 10 pixels: allowed: sides"),
        ({"groups": 3}, "model.groups=3 must divide 4"),
    ],
)
def test_wrong_options_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        build(**changes)
