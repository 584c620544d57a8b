"""Federated learning at the speed of the hardware."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flfast.state import quick_torchmetrics
from flfast.state.version import __version__ as __version__

if TYPE_CHECKING:
    from flfast.api.result import Run
    from flfast.api.running import compose, run
    from flfast.config.errors import ConfigError, RunStopped
    from flfast.lit.user_module import round_number

__all__ = ["ConfigError", "Run", "RunStopped", "compose", "round_number", "run"]
quick_torchmetrics.install()

_MODULES = {
    "ConfigError": "flfast.config.errors",
    "Run": "flfast.api.result",
    "RunStopped": "flfast.config.errors",
    "compose": "flfast.api.running",
    "round_number": "flfast.lit.user_module",
    "run": "flfast.api.running",
}
"""Modules that are imported when a name is used first: `import flfast` itself is quick."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'flfast' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
