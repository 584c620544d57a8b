"""The CNN of HeteroFL: four convolutions, whose outputs are scaled up in training.

Diao, Ding, Tarokh: HeteroFL. ICLR 2021, section 4. https://arxiv.org/abs/2010.01264. 1,556,874
parameters on MNIST at rate 1.
"""

from collections import OrderedDict

from torch import Tensor, nn

from flfast.models.images import check_image
from flfast.state.options import Count, PositiveUpToOne


class Scaler(nn.Module):
    """Divides by the rate in training, as dropout does."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """X / rate in training, x in evaluation."""
        return x / self.rate if self.training else x


def heterofl_cnn(
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    channels: list[Count],
    rate: PositiveUpToOne,
) -> nn.Module:
    """Convolutional network from images [B, channels, H, W] to logits [B, C].

    Each convolution has `rate` times its channels, rounded up.
    """
    smallest = 2 ** (len(channels) - 1)
    width, height, breadth = check_image(
        input_shape, model="model=heterofl_cnn", smallest=smallest
    )
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, whole in enumerate(channels, start=1):
        units = -int(-whole * rate // 1)
        layers[f"conv{number}"] = nn.Conv2d(width, units, kernel_size=3, padding=1)
        layers[f"scaler{number}"] = Scaler(rate)
        layers[f"bn{number}"] = nn.BatchNorm2d(units)
        layers[f"relu{number}"] = nn.ReLU()
        if number < len(channels):
            layers[f"pool{number}"] = nn.MaxPool2d(2)
            height, breadth = height // 2, breadth // 2
        width = units
    layers["pool"] = nn.AvgPool2d((height, breadth))  # vmap does not know AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(width, num_classes)
    return nn.Sequential(layers)
