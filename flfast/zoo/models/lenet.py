"""LeNet-5 with ReLU and max pooling in place of sigmoids and trained subsampling.

LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document Recognition",
Proceedings of the IEEE 86(11), 1998, section II-B. C3 reads all feature maps of S2, and the output
layer is linear: 61,706 parameters on MNIST.
"""

from torch import nn

from flfast.models.cnn import pooled_cnn
from flfast.models.images import check_image


def lenet(*, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Convolutional network from images [B, channels, H, W], at least 12x12, to logits [B, C]."""
    shape = check_image(input_shape, model="model=lenet", smallest=12)
    # The paper centres its 28x28 digits in 32x32 images; smaller images get the same margin.
    padding = 2 if min(shape[1:]) < 32 else 0
    return pooled_cnn(shape, [(6, padding), (16, 0)], [120, 84], num_classes)
