"""Callbacks that a Python program gives as objects."""

from dataclasses import replace
from typing import Any

import lightning as L

from flfast.api.own_objects import name_of
from flfast.config.errors import ConfigError
from flfast.config.own import OWN, Own


def with_callbacks(objects: Own, callbacks: Any) -> Own:
    """The same objects, and callbacks by the names of their classes, numbered where need be.

    Raises:
        ConfigError: naming what is no callback.
    """
    named: dict[str, L.Callback] = {}
    for callback in callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]:
        if not isinstance(callback, L.Callback):
            raise ConfigError(
                f"callbacks= has a {type(callback).__name__}; allowed: objects of "
                f"lightning.Callback"
            )
        name = type(callback).__name__
        named[f"{name}_{len(named) + 1}" if name in named else name] = callback
    nodes = {f"callbacks.{n}": {"_target_": name_of(c), OWN: n} for n, c in named.items()}
    return replace(objects, callbacks=named, nodes={**objects.nodes, **nodes})
