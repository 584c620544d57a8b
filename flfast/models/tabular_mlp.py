"""Multilayer perceptron for tables, with an embedding for each categorical column.

Guo and Berkhahn, "Entity Embeddings of Categorical Variables", 2016. The width is the same for all
columns, as in Gorishniy, Rubachev, Khrulkov, Babenko, "Revisiting Deep Learning Models for Tabular
Data", NeurIPS 2021, whose code embeds like this.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from flfast.models.mlp import mlp
from flfast.state.options import BelowOne, Count


class EmbeddedColumns(nn.Module):
    """Rows [B, F] -> [B, F - K + K * width]: embeds the last K columns, keeps the others.

    Args:
        categories: number of categories of each of the K columns. They hold their codes from 0.
    """

    offsets: Tensor

    def __init__(self, categories: tuple[int, ...], width: int) -> None:
        super().__init__()
        # One table for all columns, so that a batch needs one look-up.
        self.table = nn.Embedding(sum(categories), width)
        starts = [sum(categories[:column]) for column in range(len(categories))]
        self.register_buffer("offsets", torch.tensor(starts), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Numeric columns, then embeddings."""
        num = len(self.offsets)
        codes = rows[:, -num:].long() + self.offsets  # [B, K]
        return torch.cat([rows[:, :-num], self.table(codes).flatten(1)], dim=1)


def tabular_mlp(
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    categories: tuple[int, ...] = (),
    embedding: Count,
    hidden: list[Count],
    dropout: BelowOne,
) -> nn.Module:
    """ReLU network from rows of a table [B, F] to logits [B, C].

    `categories` has the number of categories of each of the last columns, which hold their codes;
    the other columns are numbers. With 16-bit weights (`trainer.precision=bf16-true`) codes above
    256 would be rounded.
    """
    if len(input_shape) != 1:
        raise ValueError(
            f"model=tabular_mlp needs rows of a table [F], the data have shape "
            f"{list(input_shape)}; use model=mlp"
        )
    width = input_shape[0] + len(categories) * (embedding - 1)
    layers = mlp(input_shape=(width,), num_classes=num_classes, hidden=hidden, dropout=dropout)
    if not categories:
        return layers
    columns = EmbeddedColumns(tuple(categories), embedding)
    return nn.Sequential(OrderedDict([("columns", columns), *layers.named_children()]))
