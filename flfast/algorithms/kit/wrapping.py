"""Tools for wrappers: algorithms that change another one from outside."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from flfast.algorithms.contract import ARGUMENTS, Algorithm, Context

Function = Callable[..., Any]
_OF_STAGES = ("loss", "gradient", "begin", "sums")
_NONE: Mapping[str, Function] = MappingProxyType({})


def viewed(
    algorithm: Algorithm, views: Mapping[str, Function], results: Mapping[str, Function] = _NONE
) -> Algorithm:
    """The algorithm whose functions see the wrapper's states, messages and contexts as their own.

    Args:
        algorithm: any.
        views: kind of argument, see `ARGUMENTS` -> (argument) -> what the algorithm's functions
            get in its place. `download` gets (broadcast, client state) and returns both.
        results: name of a field -> (result of its function) -> the wrapped function's result.
    """

    def seen(fn: Function | None, kinds: tuple[str, ...], result: Function | None = None) -> Any:
        changes = {*views} & {*kinds} or ("download" in views and kinds == ("broadcast", "client"))
        if fn is None or fn is Algorithm.loss or not (changes or result):
            return fn

        def call(*args: Any) -> Any:
            found = fn(*_viewed_arguments(views, kinds, args))
            return result(found) if result else found

        return call

    changed = {
        name: seen(getattr(algorithm, name), kinds, results.get(name))
        for name, kinds in ARGUMENTS.items()
        if name != "client_state" or algorithm.stateful
    }
    stages = [
        stage._replace(
            **{
                name: seen(getattr(stage, name), ("context",))
                for name in _OF_STAGES
                if hasattr(stage, name)
            }
        )
        for stage in algorithm.stages
    ]
    return replace(algorithm, stages=tuple(stages), **changed)


def _viewed_arguments(
    views: Mapping[str, Function], kinds: tuple[str, ...], args: tuple[Any, ...]
) -> tuple[Any, ...]:
    if "download" in views and kinds == ("broadcast", "client"):
        both: tuple[Any, ...] = views["download"](*args)
        return both
    first = len(args) - len(kinds)  # arguments before the last ones, whose kinds are known
    pairs = zip(kinds, args[first:], strict=True)
    return (*args[:first], *(views[kind](arg) if kind in views else arg for kind, arg in pairs))


def inner_context(context: Context) -> Context:
    """The context for an algorithm whose client state is `inner` in that of its wrapper."""
    return context._replace(client=context.client["inner"])
