"""Columns, channels or sensors that a client does not have.

Feng, Bose, Zhang, Hebbar, Ramakrishna, Gupta, Zhang, Avestimehr, Narayanan: FedMultimodal: A
Benchmark for Multimodal Federated Learning. KDD 2023: each modality of a client is missing with a
probability. https://arxiv.org/abs/2306.09486
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.shifts.shift import Affected, Drawn, Facts, Shift, When
from flfast.state.options import NonNegativeInt, UpToOne
from flfast.state.randomness import uniforms
from flfast.zoo.datamodules.shifts.strengths import need_numbers

_Modalities = list[list[NonNegativeInt]]


def missing_modality(*, probability: UpToOne, modalities: _Modalities | None, at: When) -> Shift:
    """Inputs [M, columns, ...] with zeros in the columns that the client does not have.

    A client always has one modality at least: that which it would lose last.
    """
    given = None if modalities is None else [[*columns] for columns in modalities]

    def draw(clients: np.ndarray, facts: Facts) -> Drawn:
        width = facts.input_shape[0]
        groups = [[column] for column in range(width)] if given is None else given
        keys = (f"shift modality {number}" for number in range(len(groups)))
        drawn = np.stack([uniforms(facts.seed, key, clients) for key in keys], axis=1)  # [K, G]
        missing = drawn < probability
        missing[np.arange(len(clients)), drawn.argmax(axis=1)] = False
        columns = np.zeros((len(clients), width), dtype=bool)
        for number, group in enumerate(groups):
            columns[:, group] = missing[:, [number]]
        return {"missing_columns": columns}

    check = partial(_check, given)
    return Shift("missing_modality", at=at, draw=draw, inputs=_blank, check=check)


def _check(modalities: _Modalities | None, examples: Examples) -> None:
    need_numbers("missing_modality", examples)
    width = examples.input_shape[0] if examples.input_shape else 0
    if modalities is None:
        if width < 2:
            raise ValueError(
                f"shift=missing_modality with inputs of shape {list(examples.input_shape)}; "
                f"allowed: at least 2 columns or channels"
            )
        return
    columns = [column for modality in modalities for column in modality]
    if len(modalities) < 2 or not all(modalities) or len(set(columns)) < len(columns):
        raise ValueError(
            f"shift.modalities={modalities}; allowed: at least 2 lists, none of them empty, "
            f"and no column twice"
        )
    if max(columns) >= width:
        raise ValueError(
            f"shift.modalities={modalities} with inputs of shape {list(examples.input_shape)}; "
            f"allowed: columns from 0 to {width - 1}"
        )


def _blank(inputs: Tensor, affected: Affected) -> Tensor:
    missing = torch.from_numpy(affected.drawn["missing_columns"])
    return inputs.masked_fill(missing.view(*missing.shape, *[1] * (inputs.ndim - 2)), 0)
