"""Values that a partition receives if it has a parameter of that name."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.state.injection import asks_for

_INTEGERS = (torch.int16, torch.int32, torch.int64)


def offers_to(
    partition: Callable[..., np.ndarray], examples: Examples, pool: np.ndarray
) -> dict[str, Any]:
    """Values that the signature of `partition` names, of the examples in the pool, int64 [M].

    Raises:
        ValueError: if a value is asked for that the data do not have.
    """
    offers: dict[str, Any] = {
        "num_examples": len(pool),
        "owner": None if examples.owner is None else examples.owner[pool],
    }
    if asks_for(partition, "labels"):
        name = getattr(getattr(partition, "func", partition), "__name__", "custom")
        others = "partitions that need none, such as partition=iid, sizes, quantity or natural"
        offers["labels"] = labels_of(examples, f"partition={name}", others)[pool]
    if asks_for(partition, "inputs"):
        offers["inputs"] = flat_inputs(examples, pool)
    return offers


def labels_of(examples: Examples, wanted_by: str, allowed: str) -> np.ndarray:
    """Labels of all examples, int64 [N].

    The error says which setting wants them, and what is allowed instead.
    """
    if examples.classes is None:
        raise ValueError(
            f"{wanted_by} with task={examples.task}: the examples have no labels; "
            f"allowed: {allowed}"
        )
    return examples.classes


def flat_inputs(examples: Examples, indices: np.ndarray) -> np.ndarray:
    """Inputs [M, D] of some examples, float32, without normalisation or augmentation.

    Raises:
        ValueError: if inputs are tokens, whose numbers mean nothing.
    """
    if examples.task == "module":
        raise ValueError(
            "the partition compares inputs, and these are a module's own samples; "
            "allowed: another one, such as partition=dirichlet"
        )
    inputs = examples.inputs
    if isinstance(inputs, Tensor):
        chosen = inputs[torch.from_numpy(indices)]
    else:
        chosen = torch.stack([inputs[index] for index in indices.tolist()])
    if chosen.dtype in _INTEGERS:
        raise ValueError(
            f"the partition compares inputs, and these are integers, {chosen.dtype}, such as "
            f"tokens; allowed: images and real numbers, or a partition such as partition=dirichlet"
        )
    flat: np.ndarray = chosen.flatten(start_dim=1).to(torch.float32).numpy()
    return flat


def digest_of_targets(examples: Examples, indices: np.ndarray) -> str:
    """Text that differs, but for chance, if some examples' targets or their order differ."""
    targets = examples.targets[torch.from_numpy(indices)].contiguous()
    return hashlib.sha256(targets.numpy().tobytes()).hexdigest()[:32]
