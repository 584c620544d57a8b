"""Checks and choices of models that read tokens."""

import torch
from torch import Tensor

from flfast.tasks.names import TaskName


def check_tokens(input_shape: tuple[int, ...], num_tokens: int, *, model: str) -> int:
    """The number T of tokens of an input.

    Args:
        input_shape: shape of one input.
        num_tokens: size of the vocabulary of the inputs; 0 if they are no tokens.
        model: the choice of model, for the message.

    Raises:
        ValueError: if the inputs are no rows of tokens.
    """
    if len(input_shape) != 1 or not num_tokens:
        kind = "whole numbers" if num_tokens else "no whole numbers"
        raise ValueError(
            f"{model} needs tokens, int64 [T]; the data are {kind} of shape {list(input_shape)}"
        )
    return input_shape[0]


def read_positions(features: Tensor, task: TaskName, tokens: Tensor) -> Tensor:
    """The features that the last layer reads: of all positions, or of an example's last token.

    Args:
        features: features at every position, [B, T, D].
        task: `language` predicts at every position, other tasks once per example.
        tokens: int64 [B, T]; zeros at the end are padding.
    """
    if task == "language":
        return features
    places = torch.arange(tokens.shape[1], device=tokens.device)
    last = torch.where(tokens != 0, places, 0).amax(dim=1)
    return features.gather(1, last[:, None, None].expand(-1, 1, features.shape[2])).squeeze(1)
