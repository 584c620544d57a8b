"""Imports libraries that only some data sources need."""

import importlib
from types import ModuleType


def import_extra(name: str, *, extra: str) -> ModuleType:
    """Import a library that flfast's extra of that name installs.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"this data source needs {name.split('.')[0]}, which is not installed ({error}); "
            f"run: pip install flfast[{extra}]"
        ) from None
