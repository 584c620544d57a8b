"""A second model beside the client's own, trained along with it in one local training.

Its leaves are those of the model with a prefix that no module's name can have.
"""

from typing import Any

from flfast.state.tree import Tree

PREFIX = "personal/"


def with_personal(weights: Tree, personal: Tree) -> Tree:
    """Weights of a model and of the personal one beside it."""
    return {kind: {**weights[kind], **prefixed(personal[kind])} for kind in ("params", "buffers")}


def prefixed(leaves: dict[str, Any]) -> dict[str, Any]:
    """Leaves by name, under their names in the personal model.

    >>> prefixed({"fc.weight": 1})
    {'personal/fc.weight': 1}
    """
    return {PREFIX + name: leaf for name, leaf in leaves.items()}


def personal_part(leaves: dict[str, Any]) -> dict[str, Any]:
    """The leaves of the personal model, under their names in the model.

    >>> personal_part({"fc.weight": 0, "personal/fc.weight": 1})
    {'fc.weight': 1}
    """
    return {
        name.removeprefix(PREFIX): leaf for name, leaf in leaves.items() if name.startswith(PREFIX)
    }


def shared_part(leaves: dict[str, Any]) -> dict[str, Any]:
    """The leaves of the model itself.

    >>> shared_part({"fc.weight": 0, "personal/fc.weight": 1})
    {'fc.weight': 0}
    """
    return {name: leaf for name, leaf in leaves.items() if not name.startswith(PREFIX)}


def separated(weights: Tree) -> tuple[Tree, Tree]:
    """Weights of the model, and of the personal one; undoes `with_personal`."""
    shared = {kind: shared_part(weights[kind]) for kind in ("params", "buffers")}
    personal = {kind: personal_part(weights[kind]) for kind in ("params", "buffers")}
    return shared, personal
