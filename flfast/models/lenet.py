"""LeNet-5 with ReLU and max pooling in place of sigmoids and trained subsampling.

LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document Recognition",
Proceedings of the IEEE 86(11), 1998, section II-B. C3 reads all feature maps of S2, and the output
layer is linear: 61,706 parameters on MNIST.
"""

from collections import OrderedDict

from torch import nn

from flfast.models.images import check_image


def lenet(*, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Convolutional network from images [B, channels, H, W], at least 12x12, to logits [B, C]."""
    channels, height, width = check_image(input_shape, model="model=lenet", smallest=12)
    # The paper centres its 28x28 digits in 32x32 images; smaller images get the same margin.
    padding = 2 if min(height, width) < 32 else 0
    rows, columns = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in (height, width))
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = nn.Conv2d(channels, 6, kernel_size=5, padding=padding)
    layers["relu1"] = nn.ReLU()
    layers["pool1"] = nn.MaxPool2d(2)
    layers["conv2"] = nn.Conv2d(6, 16, kernel_size=5)
    layers["relu2"] = nn.ReLU()
    layers["pool2"] = nn.MaxPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["fc1"] = nn.Linear(16 * rows * columns, 120)
    layers["relu3"] = nn.ReLU()
    layers["fc2"] = nn.Linear(120, 84)
    layers["relu4"] = nn.ReLU()
    layers["fc"] = nn.Linear(84, num_classes)
    return nn.Sequential(layers)
