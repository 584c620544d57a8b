"""oneDNN's kernel of an LSTM layer, which is one operator of a traced step.

The kernel keeps what its backward pass reads only where gradients are enabled. Programs run
without autograd, so `keep_workspace` puts an operator in its place that enables them for the call.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

aten = torch.ops.aten


def keep_workspace(module: GraphModule) -> None:
    """Replace the kernel in a traced step; changed in place."""
    for node in module.graph.nodes:
        if node.target is aten.mkldnn_rnn_layer.default:
            node.target = _operator()


def has_slow_recurrence(model: nn.Module, precision: str, device: torch.device) -> bool:
    """Whether a recurrent layer has no kernel, so that every position is traced on its own.

    The precision is one of `trainer.precision`, the device the one that trains the model.
    """
    if device.type != "cpu":
        return False
    has_kernel = torch.backends.mkldnn.is_available() and precision == "32-true"
    layers = (layer for layer in model.modules() if isinstance(layer, nn.RNNBase))
    return any(not has_kernel or layer.mode != "LSTM" or layer.proj_size for layer in layers)


@cache
def _operator() -> Any:
    """`flfast::lstm_layer`, registered when it is first needed."""
    library = torch.library.Library("flfast", "FRAGMENT")
    schema = str(aten.mkldnn_rnn_layer.default._schema).partition("(")[2]  # noqa: SLF001
    library.define(f"lstm_layer({schema}")
    library.impl("lstm_layer", _lstm_layer, "CPU")
    _registered.append(library)  # the operator lives as long as the library
    return torch.ops.flfast.lstm_layer.default


_registered: list[torch.library.Library] = []


def _lstm_layer(*args: Any) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        found: tuple[Tensor, ...] = aten.mkldnn_rnn_layer.default(*args)
    return found
