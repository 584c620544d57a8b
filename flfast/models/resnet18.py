"""ResNet-18 from torchvision, with a choice of normalisation and stem.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016. GroupNorm in place
of BatchNorm for skewed labels: Hsieh, Phanishayee, Mutlu, Gibbons, "The Non-IID Data Quagmire of
Decentralized Machine Learning", ICML 2020, section 5. Without normalisation the initial weights
are the same; they keep activations near 1 in all four stages.
"""

from typing import Literal

from torch import nn

from flfast.models.images import check_image, norm_layer
from flfast.state.options import Count


def resnet18(
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    norm: Literal["batch", "group", "none"],
    groups: Count,
    small_images: bool,
) -> nn.Module:
    """Residual network from images [B, channels, H, W] to logits [B, C]."""
    # This import takes seconds, which runs of other models should not pay for.
    from torchvision.models import resnet18 as torchvision_resnet18

    channels, _, _ = check_image(input_shape, model="model=resnet18")
    model = torchvision_resnet18(num_classes=num_classes, norm_layer=norm_layer(norm, groups))
    if small_images:
        model.conv1 = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    else:
        model.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model
