"""Old dotted paths of modules that moved, which this version still understands. Torch-free.

They stand in configs of runs, and programs of users import them.
"""

import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

_RENAMED = {
    "flfast.adapters.none": "flfast.models.adapters.adapted",
    "flfast.aggregations.mean": "flfast.channel.aggregations.aggregation",
    "flfast.attacks.none": "flfast.channel.attacks.attack",
    "flfast.audits.none": "flfast.audits.audit",
    "flfast.compression.none": "flfast.channel.compression.compression",
    "flfast.datamodules.shifts.none": "flfast.datamodules.shifts.shift",
    "flfast.faults.none": "flfast.channel.faults.fault",
    "flfast.federation.selections.none": "flfast.federation.selections.selected",
    "flfast.federation.stops.never": "flfast.federation.stops.stop",
    "flfast.federation.works.full": "flfast.federation.works.work",
    "flfast.privacy.none": "flfast.channel.privacy.privacy",
    "flfast.secure.none": "flfast.channel.secure.secure",
    "flfast.server": "flfast.channel",
}
_MOVED = {
    "channel": ("aggregations", "attacks", "compression", "faults", "privacy", "secure"),
    "models": ("adapters",),
    "federation": ("devices",),
    "engines": ("evaluation",),
    "output": ("callbacks", "loggers", "results"),
    "commands": ("saved", "sweeps"),
    "state": (
        *("csv_file", "environment", "injection", "machine", "messages", "native", "options"),
        *("output_streams", "plan", "randomness", "regular_file"),
    ),
    "algorithms.contract": ("algorithm", "client", "downloads", "records", "uploads"),
    "algorithms.kit": (
        *("adaptive_server", "class_means", "degenerate", "discrepancy", "divergence"),
        *("gradient", "keep_local", "last_layer", "local_optimizer", "local_sgd", "measures"),
        *("min_norm", "model_groups", "own_module", "private_models", "prototypes"),
        *("second_model", "server_optimizer", "several_models", "sharpness_aware", "split"),
        "wrapping",
    ),
}
"""Names by the street that they moved to."""


@cache
def _moves() -> dict[str, str]:
    moves = dict(_RENAMED)
    for street, names in _MOVED.items():
        before = "flfast." + ("algorithms." if street.startswith("algorithms") else "")
        moves |= {f"{before}{name}": f"flfast.{street}.{name}" for name in names}
    return moves


@cache
def new_path(path: str) -> str:
    """The dotted path that a module, or a name in one, has now.

    >>> new_path("flfast.attacks.none.none")
    'flfast.channel.attacks.attack.none'
    >>> new_path("torch.optim.SGD")
    'torch.optim.SGD'
    """
    parts = path.split(".") if path.startswith("flfast.") else []
    for num in range(len(parts), 1, -1):
        found = _moves().get(".".join(parts[:num]))
        if found:
            return ".".join([found, *parts[num:]])
    return path


def renamed(node: Any) -> Any:
    """A part of a saved config, as plain values, whose targets have their new paths."""
    if isinstance(node, list):
        return [renamed(child) for child in node]
    if not isinstance(node, dict):
        return node
    return {
        key: new_path(value) if key == "_target_" and isinstance(value, str) else renamed(value)
        for key, value in node.items()
    }


def old_targets(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(key of a node, old path) of each `_target_` that moved."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for name, child in items:
        if isinstance(child, (dict, list)):
            yield from old_targets(child, f"{key}.{name}" if key else str(name))
        elif name == "_target_" and isinstance(child, str) and new_path(child) != child:
            yield key, child


class _OldImports(MetaPathFinder, Loader):
    """Imports of old paths give the module that has moved, with a warning."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `MetaPathFinder`."""
        return None if new_path(fullname) == fullname else spec_from_loader(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See `Loader`."""
        new = new_path(spec.name)
        warnings.warn(f"{spec.name} is {new} now", FutureWarning, stacklevel=2)
        module = import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module has run; give it back the spec that the import system has replaced."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def serve_old_imports() -> None:
    """Let programs import modules by their old paths."""
    # First, since the packages that moved would otherwise load their modules a second time.
    sys.meta_path.insert(0, _OldImports())
