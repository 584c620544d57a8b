"""Tools for wrappers: algorithms that change another one from outside."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.client import Context


def in_context(algorithm: Algorithm, change: Callable[[Context], Context]) -> Algorithm:
    """The algorithm whose functions of local training read another context.

    Args:
        algorithm: any.
        change: given context -> the context that the algorithm's functions read.
    """

    def changed(fn: Callable[..., Any] | None) -> Any:
        return fn and (lambda *args: fn(*args[:-1], change(args[-1])))  # the context comes last

    fields = ("loss", "gradient", "begin", "sums")
    stages = [
        stage._replace(**{n: changed(getattr(stage, n)) for n in fields if hasattr(stage, n)})
        for stage in algorithm.stages
    ]
    return replace(
        algorithm,
        stages=tuple(stages),
        loss=changed(algorithm.loss),
        gradient=changed(algorithm.gradient),
        correct=changed(algorithm.correct),
        finish=changed(algorithm.finish),
        weight=changed(algorithm.weight),
    )


def check_one_call(algorithm: Algorithm, option: str, *, unless: bool = False) -> None:
    """Refuse an option that changes the one call of a round, where a round has several.

    Args:
        algorithm: any.
        option: for the message.
        unless: whether the option can do with several calls.

    Raises:
        ValueError: naming algorithm and option.
    """
    if algorithm.round is not None and not unless:
        raise ValueError(
            f"{option} with algorithm={algorithm.name}, whose rounds are more than one call of "
            f"the clients; use another algorithm"
        )


def inner(algorithm: Algorithm) -> Algorithm:
    """The algorithm for a wrapper, whose client state holds the algorithm's own as `inner`."""
    return in_context(algorithm, lambda ctx: ctx._replace(client=ctx.client["inner"]))
