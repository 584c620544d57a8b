"""Tools for wrappers: algorithms that change another one from outside."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from flfast.algorithms.contract import Algorithm, Context

Function = Callable[..., Any]
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "weighting": ("done", "context"),
    "server_state": ("weights",),
    "client_state": ("broadcast",),
    "broadcast": ("server",),
    "send": ("server", "records", "clients"),
    "record.rows": ("server", "uploads"),
    "record.initial": ("server",),
    "start": ("broadcast", "client"),
    "loss": ("context",),
    "gradient": ("context",),
    "correct": ("context",),
    "finish": ("done", "context"),
    "server_step": ("server", "uploads"),
    "round": ("server", "round"),
    "personal": ("broadcast", "client"),
    "kit.optimizer": ("broadcast", "client"),
    "kit.fold": ("broadcast",),
}
"""The last arguments of each function of an `Algorithm`, also within a record. `predict` and the
kit's `place` read nothing that a wrapper changes."""

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
        results: name of a function -> (result of its function) -> the wrapped function's result.
    """

    def seen(fn: Any, kinds: tuple[str, ...], result: Function | None = None) -> Any:
        changes = {*views} & {*kinds} or ("download" in views and kinds == ("broadcast", "client"))
        if not callable(fn) or fn is Algorithm.loss or not (changes or result):
            return fn

        def call(*args: Any) -> Any:
            found = fn(*_viewed_arguments(views, kinds, args))
            return result(found) if result else found

        return call

    changed: dict[str, Any] = {}
    for path, kinds in ARGUMENTS.items():
        name, _, part = path.partition(".")
        given = changed.get(name, getattr(algorithm, name))
        if not part:
            changed[name] = seen(given, kinds, results.get(path))
        elif given is not None:
            fn = seen(getattr(given, part), kinds, results.get(path))
            changed[name] = given._replace(**{part: fn})
    if not algorithm.stateful:
        changed["client_state"] = algorithm.client_state
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
