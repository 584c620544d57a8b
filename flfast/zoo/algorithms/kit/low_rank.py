"""Factors A and B of `adapter=lora` beside a layer, and their products."""

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

from torch import Tensor

from flfast.algorithms.contract import Algorithm, KitFunctions, Part, Weighting
from flfast.algorithms.kit.degenerate import degenerate
from flfast.algorithms.kit.slices import check_slice, sliced
from flfast.state.tree import Tree, zeros
from flfast.state.weights import model_weights

BASE = "base"
"""Of a server state and a broadcast: sums of products by name of A, for `KitFunctions.fold`."""


def factor_pairs(initial: Tree, *, algorithm: str | None = None) -> dict[str, str]:
    """Name of the factor B of each layer by name of its A.

    Without such factors a warning says that the algorithm, if it is given, is FedAvg.
    """
    names = [name for name in initial["params"] if "lora_A" in name]
    if algorithm is not None:
        degenerate(
            not names,
            f"algorithm={algorithm} without adapter=lora, or with freeze_a=true, is FedAvg",
        )
    return {name: name.replace("lora_A", "lora_B") for name in names}


def products(params: Tree, pairs: dict[str, str]) -> dict[str, Tensor]:
    """B A [out, in * kernel] of each layer, by name of A."""
    return {a: params[b].flatten(1) @ params[a].flatten(1) for a, b in pairs.items()}


def averaged_products(
    name: str, initial: Tree, members: Sequence[Tree], weighting: Weighting, *, factors: bool
) -> Algorithm:
    """The server gets the mean of clients' products of LoRA, as `products` by name of A.

    Its factors are those of the first of the `members`, the largest, which are given by their
    weights. Clients get the first rows of A and columns of B. `factors` says whether changes of
    the factors are averaged, too.

    Raises:
        ValueError: naming a leaf in which members differ, but must not.
    """
    whole = members[0]
    check_slice(initial, whole)
    pairs = factor_pairs(initial)
    names = [*pairs, *pairs.values()]
    allowed = "members of one rank" if factors else "members that differ in adapter.rank only"
    for key, leaf in initial["params"].items():
        if leaf.shape != (other := whole["params"][key]).shape and (factors or key not in names):
            raise ValueError(
                f"model.of with algorithm={name}: {key} has shapes {[*leaf.shape]} and "
                f"{[*other.shape]}; allowed: {allowed}"
            )

    def place(upload: Tree, broadcast: Tree) -> Tree:
        change = upload["params"]
        new = {key: broadcast["params"][key] + change[key] for key in names}
        averaged = {key: leaf for key, leaf in change.items() if factors or key not in names}
        return {"params": averaged, "products": products(new, pairs)}

    return Algorithm(
        name=name,
        weighting=weighting,
        server_state=lambda weights: whole,
        broadcast=lambda server: sliced(model_weights(server), initial),
        kit=KitFunctions(place=place),
        parts={"products": Part(stale="refuse")},
    )


def folded(algorithm: Algorithm, initial: Tree) -> Algorithm:
    """The algorithm, with sums of products in its server state which go into the frozen base.

    Clients get the whole sums, as they may have missed rounds.
    """
    first = products(initial["params"], factor_pairs(initial))
    return replace(
        algorithm,
        server_state=lambda weights: {**algorithm.server_state(weights), BASE: zeros(first)},
        broadcast=lambda server: {**algorithm.broadcast(server), BASE: server[BASE]},
        kit=algorithm.kit._replace(fold=itemgetter(BASE)),
    )
