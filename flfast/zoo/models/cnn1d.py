"""Convolutional network for series: two 1-D convolutions with max pooling, two hidden layers.

HARCNN of PFLlib (Zhang et al., "PFLlib: A Beginner-Friendly and Comprehensive Personalized
Federated Learning Library and Benchmark", JMLR 26, 2025): 2,253,958 parameters on UCI HAR's 9
channels of 128 samples and 6 activities.
"""

from collections import OrderedDict

from torch import nn

from flfast.models.mlp import dense_layers
from flfast.state.options import Count


def cnn1d(
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    channels: list[Count],
    kernel_size: Count,
    hidden: list[Count],
) -> nn.Module:
    """Convolutional network from series [B, channels, T] to logits [B, C]."""
    if len(input_shape) != 2:
        raise ValueError(
            f"model=cnn1d needs series [channels, T], the data have shape {list(input_shape)}; "
            "use model=mlp or model=logistic"
        )
    width, length = input_shape
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, units in enumerate(channels, start=1):
        layers[f"conv{number}"] = nn.Conv1d(width, units, kernel_size)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool1d(2)
        width, length = units, (length - kernel_size + 1) // 2
    if length < 1:
        raise ValueError(
            f"model.channels={[*channels]} with model.kernel_size={kernel_size} leave nothing of "
            f"series of {input_shape[1]} samples; use fewer channels or a smaller kernel_size"
        )
    top = dense_layers(width * length, hidden, num_classes, relus=len(channels))
    return nn.Sequential(layers | top)
