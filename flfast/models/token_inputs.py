"""What models that read tokens share: a check of their inputs, and their last layer."""

import torch
from torch import Tensor, nn

from flfast.tasks.factored_logits import FactoredLogits, factored_logits
from flfast.tasks.names import TaskName


def check_tokens(input_shape: tuple[int, ...], num_tokens: int, *, model: str) -> int:
    """The number T of tokens of an input; `num_tokens` is 0 if inputs are no tokens.

    Raises:
        ValueError: if the inputs are no rows of tokens.
    """
    if len(input_shape) != 1 or not num_tokens:
        kind = "whole numbers" if num_tokens else "no whole numbers"
        raise ValueError(
            f"{model} needs tokens, int64 [T]; the data are {kind} of shape {list(input_shape)}"
        )
    return input_shape[0]


def token_logits(
    features: Tensor, layer: nn.Module, task: TaskName, tokens: Tensor, *, factored: bool
) -> Tensor | FactoredLogits:
    """Logits of all positions [B, T, C] for `language`, else of an example's last token [B, C].

    Features are [B, T, D], tokens int64 [B, T]; zeros at the end are padding. With `factored`,
    features and the layer's weights take the place of logits.
    """
    if task != "language":
        places = torch.arange(tokens.shape[1], device=tokens.device)
        last = torch.where(tokens != 0, places, 0).amax(dim=1)
        last = last[:, None, None].expand(-1, 1, features.shape[2])
        features = features.gather(1, last).squeeze(1)
    if factored:
        return factored_logits(features, layer)
    logits: Tensor = layer(features)
    return logits
