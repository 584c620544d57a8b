import pytest
import torch
from torch import nn

from flfast.zoo.models.vgg11 import vgg11


def build(input_shape=(3, 32, 32), *, num_classes=10, hidden=(512, 512), norm="none", groups=32):
    return vgg11(
        input_shape=input_shape,
        num_classes=num_classes,
        hidden=list(hidden),
        norm=norm,
        groups=groups,
        dropout=0.0,
    )


@pytest.mark.parametrize(
    ("shape", "num_classes", "hidden", "expected"),
    [
        # torchvision's VGG-11; the paper rounds it to 133 million.
        ((3, 224, 224), 1000, (4096, 4096), 132_863_336),
        # 9,220,480 of the convolutions, 2 * 512 * 513 + 10 * 513 of the linear layers.
        ((3, 32, 32), 10, (512, 512), 9_750_922),
    ],
)
def test_the_number_of_parameters_is_as_published(shape, num_classes, hidden, expected):
    with torch.device("meta"):
        model = build(shape, num_classes=num_classes, hidden=hidden)
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize(("norm", "kind"), [("batch", nn.BatchNorm2d), ("group", nn.GroupNorm)])
def test_every_convolution_is_normalised_if_asked_for(norm, kind):
    with torch.device("meta"):
        layers, plain = list(build(norm=norm)), list(build())
    convolutions = [i for i, layer in enumerate(layers) if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 8
    assert all(isinstance(layers[i + 1], kind) for i in convolutions)
    assert not any(isinstance(layer, (nn.BatchNorm2d, nn.GroupNorm)) for layer in plain)


def test_activations_keep_their_size_without_normalisation():
    values = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for layer in build():
            values = layer(values)
            assert 0.2 < values.std() < 10


def test_what_cannot_be_built_is_refused():
    with pytest.raises(
        ValueError, match=r"model=vgg11 needs images of at least 32x32, .* 3x28x28"
    ):
        build((3, 28, 28))
    with pytest.raises(ValueError, match=r"model.groups=48 must divide 64"):
        build(norm="group", groups=48)
