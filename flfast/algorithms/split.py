"""Where a model is cut: a head by the names of its layers, and the body that is the rest."""

import re
from collections.abc import Iterable, Sequence

from flfast.state.tree import Tree

_KINDS = ("params", "buffers")


def split(weights: Tree, head: Sequence[str] | None) -> tuple[Tree, Tree]:
    """Leaves of the head, and those of the body.

    Args:
        weights: of the model, `{"params": ..., "buffers": ...}`.
        head: paths of modules or parameters, such as `fc` or `layer4.1`, or regular expressions
            for them; None is the last layer that has parameters.

    Raises:
        ValueError: if a pattern matches nothing, or together they match everything.
    """
    names = [name for kind in _KINDS for name in weights[kind]]
    if head is None:
        last = _layers(weights)[-1]
        found = {name for name in names if name.rpartition(".")[0] == last}
    else:
        found = {name for pattern in head for name in _matched(pattern, names, weights)}
    if not found or found >= weights["params"].keys():
        shown = "null" if head is None else [*head]
        nothing = "is nothing of the model" if not found else "leaves no body"
        raise ValueError(f"algorithm.head={shown} {nothing}; {_described(weights)}")
    return _part(weights, found), _part(weights, set(names) - found)


def head_layer(weights: Tree, head: Sequence[str] | None) -> str:
    """Path of the first layer of the head, whose input are the model's features.

    Raises:
        ValueError: as `split`.
    """
    if len(_layers(weights)) == 1 and head is None:
        return _layers(weights)[0]
    return _layers(split(weights, head)[0])[0]


def _matched(pattern: str, names: Iterable[str], weights: Tree) -> set[str]:
    try:
        expression = re.compile(rf"(?:{pattern})(?:\..*)?")
    except re.error as error:
        raise ValueError(
            f"algorithm.head: {pattern!r} is no regular expression: {error}"
        ) from None
    found = {name for name in names if expression.fullmatch(name)}
    if not found:
        raise ValueError(f"algorithm.head: {pattern!r} matches nothing; {_described(weights)}")
    return found


def _described(weights: Tree) -> str:
    layers = dict.fromkeys(name.rpartition(".")[0] or name for name in weights["params"])
    return (
        f"allowed: some of the model's layers {', '.join(layers)}, or regular expressions for them"
    )


def _layers(weights: Tree) -> list[str]:
    """Paths of the modules that have parameters, in the model's order."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in weights["params"]))


def _part(weights: Tree, names: set[str]) -> Tree:
    return {
        kind: {name: leaf for name, leaf in weights[kind].items() if name in names}
        for kind in _KINDS
    }
