"""Calling a configured function with what it asks for, by parameter name. Torch-free."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def call_with(fn: Callable[..., T], *args: Any, **offers: Any) -> T:
    """Call `fn(*args)` with those offers that its signature names.

    So a model says whether it needs `input_shape`, and a partition whether it reads `owner`,
    by naming them; nothing is typed twice and nothing has to accept what it ignores.

    >>> call_with(lambda x, *, b: (x, b), 1, a=2, b=3)
    (1, 3)
    """
    asked = inspect.signature(fn).parameters
    return fn(*args, **{name: value for name, value in offers.items() if name in asked})
