"""Factors A and B of `adapter=lora` beside a layer, and their products."""

from torch import Tensor

from flfast.algorithms.kit.degenerate import degenerate
from flfast.state.tree import Tree


def factor_pairs(initial: Tree, *, algorithm: str) -> dict[str, str]:
    """Name of the factor B of each layer by name of its A.

    Without such factors a warning says that the algorithm is FedAvg.
    """
    names = [name for name in initial["params"] if "lora_A" in name]
    degenerate(
        not names, f"algorithm={algorithm} without adapter=lora, or with freeze_a=true, is FedAvg"
    )
    return {name: name.replace("lora_A", "lora_B") for name in names}


def products(params: Tree, pairs: dict[str, str]) -> dict[str, Tensor]:
    """B A [out, in * kernel] of each layer, by name of A."""
    return {a: params[b].flatten(1) @ params[a].flatten(1) for a, b in pairs.items()}
