"""Imports libraries that only some options need."""

import importlib
from typing import Any


def import_extra(name: str, *, extra: str, by: str = "this data source") -> Any:
    """Import a library that flfast's extra of that name installs; `by` is what needs it.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"{by} needs {name.split('.')[0]}, which is not installed ({error}); "
            f"run: pip install 'flfast[{extra}]'"
        ) from None
