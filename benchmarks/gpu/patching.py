"""How jobs change what runs in their process. Torch-free."""

from typing import Any


def put(owner: Any, name: str, value: Any) -> None:
    """Replace an attribute, which must be there.

    Raises:
        AttributeError: if there is none: the code has changed, and the job measures nothing.
    """
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}: benchmarks.gpu patches what is gone")
    setattr(owner, name, value)
