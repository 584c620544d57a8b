"""Calls a configured function with the arguments that its signature names. Torch-free."""

import inspect
from collections.abc import Callable, Container
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


def call_with(fn: Callable[..., T], *args: Any, **offers: Any) -> T:
    """Call `fn(*args)` with the offers that are parameters of `fn`.

    A model that needs `input_shape`, or a partition that needs `owner`, declares a parameter of
    that name. Others do not have to accept an argument that they ignore.

    >>> call_with(lambda x, *, b: (x, b), 1, a=2, b=3)
    (1, 3)
    """
    asked: Container[str] = _parameters(fn) if offers else {}
    return fn(*args, **{name: value for name, value in offers.items() if name in asked})


def asks_for(fn: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of that name.

    >>> asks_for(lambda x, *, b: x, "b")
    True
    """
    return name in _parameters(fn)


def forwards_any(fn: Callable[..., Any]) -> bool:
    """Whether a function takes `**kwargs`, whose names its signature does not tell.

    >>> forwards_any(lambda **kwargs: kwargs), forwards_any(lambda x: x)
    (True, False)
    """
    kinds = (parameter.kind for parameter in inspect.signature(fn).parameters.values())
    return inspect.Parameter.VAR_KEYWORD in kinds


def bound(fn: Callable[..., T], **offers: Any) -> Callable[..., T]:
    """`fn` with the offers that are its parameters, for a function that is called often.

    A partial is made anew: Hydra's own checks its target in every call, which costs 0.3 ms.
    """
    parameters = _parameters(fn)
    given = {name: value for name, value in offers.items() if name in parameters}
    if isinstance(fn, partial):
        return partial(fn.func, *fn.args, **{**fn.keywords, **given})
    return partial(fn, **given)


def _parameters(fn: Callable[..., Any]) -> Container[str]:
    """Names of parameters; none of a function in C that does not tell them."""
    try:
        return inspect.signature(fn).parameters
    except ValueError:
        return {}
