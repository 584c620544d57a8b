"""Splits a model into a head, given by the names of its layers, and the body below it."""

import re
from collections.abc import Iterable, Sequence

from flfast.models.adapters.layer_names import layer_of
from flfast.state.tree import Tree, without
from flfast.state.weights import by_name, select_weights


def split(weights: Tree, head: Sequence[str] | None) -> tuple[Tree, Tree]:
    """(head, body) weights of a model.

    Args:
        weights: weights of the model, `{"params": ..., "buffers": ...}`.
        head: paths of modules or parameters, such as `fc` or `layer4.1`, or regular expressions
            for them; None is the last layer that has parameters.

    Raises:
        ValueError: if a pattern matches nothing, or no parameter is left for the body.
    """
    names = list(by_name(weights))
    if head is None:
        last = _layers(weights)[-1]
        found = {name for name in names if layer_of(name) == last}
    else:
        found = {name for pattern in head for name in _matched(pattern, names, weights)}
    if not found or found >= weights["params"].keys():
        shown = "null" if head is None else [*head]
        problem = "leaves no body" if found else "matches nothing"
        raise ValueError(f"algorithm.head={shown} {problem}; {_allowed(weights)}")
    head_weights = select_weights(weights, found.__contains__)
    return head_weights, without(weights, head_weights)


def head_layer(weights: Tree, head: Sequence[str] | None) -> str:
    """Path of the first layer of the head; its inputs are the features.

    Raises:
        ValueError: see `split`.
    """
    if len(_layers(weights)) == 1 and head is None:
        return _layers(weights)[0]
    return _layers(split(weights, head)[0])[0]


def _matched(pattern: str, names: Iterable[str], weights: Tree) -> set[str]:
    try:
        expression = re.compile(rf"(?:{pattern})(?:\..*)?")
    except re.error as error:
        raise ValueError(
            f"algorithm.head: {pattern!r} is not a regular expression: {error}"
        ) from None
    found = {name for name in names if expression.fullmatch(name)}
    if not found:
        raise ValueError(f"algorithm.head: {pattern!r} matches nothing; {_allowed(weights)}")
    return found


def _allowed(weights: Tree) -> str:
    layers = dict.fromkeys(layer_of(name) or name for name in weights["params"])
    return (
        f"allowed: some of the model's layers {', '.join(layers)}, or regular expressions for them"
    )


def _layers(weights: Tree) -> list[str]:
    """Paths of the modules that have parameters, in the order of the model."""
    return list(dict.fromkeys(layer_of(name) for name in weights["params"]))
