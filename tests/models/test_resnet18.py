import pytest
import torch
from sampling import others_slow
from torch import nn

from flfast.models.resnet18 import resnet18


def build(input_shape=(3, 32, 32), *, norm="batch", groups=32, small_images=True):
    torch.random.manual_seed(0)
    return resnet18(
        input_shape=input_shape,
        num_classes=10,
        norm=norm,
        groups=groups,
        small_images=small_images,
    )


def count(model, kind):
    return sum(isinstance(module, kind) for module in model.modules())


@pytest.mark.parametrize(
    ("norm", "batch", "group"), [("batch", 20, 0), ("group", 0, 20), ("none", 0, 0)]
)
def test_every_normalisation_is_of_the_chosen_kind(norm, batch, group):
    model = build(norm=norm)
    assert count(model, nn.BatchNorm2d) == batch
    assert count(model, nn.GroupNorm) == group


def test_the_number_of_groups_is_the_chosen_one():
    norms = [
        module
        for module in build(norm="group", groups=2).modules()
        if hasattr(module, "num_groups")
    ]
    assert {norm.num_groups for norm in norms} == {2}


def test_groups_that_do_not_divide_the_channels_are_refused():
    with pytest.raises(ValueError, match=r"model.groups=48 must divide 64"):
        build(norm="group", groups=48)
    build(norm="batch", groups=48)


@pytest.mark.parametrize(
    ("channels", "small_images", "expected"),
    [
        # torchvision's ResNet-18: 11,689,512 with 1,000 classes, less 990 * 513 for 10.
        (3, False, 11_181_642),
        # The stem has 3 * 3 instead of 7 * 7 weights for each of 64 filters and each channel.
        (3, True, 11_181_642 - 64 * 3 * (49 - 9)),
        (1, False, 11_181_642 - 64 * 2 * 49),
    ],
)
def test_parameters_are_resnet_18s(channels, small_images, expected):
    model = build((channels, 32, 32), small_images=small_images)
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize("small_images", [False, True])
def test_only_small_images_keep_their_size_in_the_stem(small_images):
    model = build((3, 32, 32), small_images=small_images)
    stem = model.maxpool(model.conv1(torch.rand(1, 3, 32, 32)))
    assert stem.shape[-1] == (32 if small_images else 8)


@pytest.mark.parametrize("norm", others_slow(["batch", "group", "none"], ["batch"]))
def test_a_few_steps_fit_a_batch(norm):
    model = build((1, 8, 8), norm=norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(8, 1, 8, 8), torch.arange(8)
    losses = []
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_activations_neither_vanish_nor_explode_without_normalisation():
    model = build(norm="none")
    hidden = model.relu(model.conv1(torch.randn(4, 3, 32, 32)))
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        hidden = stage(hidden)
        assert 0.1 < hidden.square().mean().sqrt() < 10


def test_inputs_that_are_no_images_are_refused():
    with pytest.raises(ValueError, match=r"model=resnet18 needs images .* \[60\]; use model=mlp"):
        build((60,))
