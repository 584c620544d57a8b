"""A second, personal model that is trained in the same local steps as the federated one.

Its leaves have a prefix with a slash, which no module name can contain.
"""

from typing import Any

from flfast.algorithms.contract import Context, Finished
from flfast.state.tree import Tree, merge
from flfast.state.weights import map_weights, model_weights

PREFIX = "personal/"


def with_personal(weights: Tree, personal: Tree) -> Tree:
    """The weights of both models in one tree."""
    return merge(model_weights(weights), map_weights(prefixed, personal))


def prefixed(leaves: dict[str, Any]) -> dict[str, Any]:
    """Add the prefix of the personal model to names.

    >>> prefixed({"fc.weight": 1})
    {'personal/fc.weight': 1}
    """
    return {PREFIX + name: leaf for name, leaf in leaves.items()}


def personal_part(leaves: dict[str, Any]) -> dict[str, Any]:
    """The leaves of the personal model, without the prefix.

    >>> personal_part({"fc.weight": 0, "personal/fc.weight": 1})
    {'fc.weight': 1}
    """
    return {
        name.removeprefix(PREFIX): leaf for name, leaf in leaves.items() if name.startswith(PREFIX)
    }


def shared_part(leaves: dict[str, Any]) -> dict[str, Any]:
    """The leaves of the federated model.

    >>> shared_part({"fc.weight": 0, "personal/fc.weight": 1})
    {'fc.weight': 0}
    """
    return {name: leaf for name, leaf in leaves.items() if not name.startswith(PREFIX)}


def upload_shared(done: Finished, ctx: Context) -> tuple[Tree, Tree]:
    """An algorithm's `finish`: uploads the federated model's change, keeps the personal model."""
    shared, personal = split_personal(done.weights)
    return ctx.change(shared), personal


def split_personal(weights: Tree) -> tuple[Tree, Tree]:
    """(federated, personal) weights; the inverse of `with_personal`."""
    return map_weights(shared_part, weights), map_weights(personal_part, weights)
