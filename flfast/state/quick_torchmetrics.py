"""Lets torchmetrics load its two classes first, and all its metrics when one is asked for.

Lightning and flfast need `Metric` and `MetricCollection`. The package imports all its metrics, and
with them torchvision, transformers and scipy where they are installed. They take half of the time
that it takes to import Lightning.
"""

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_NAME = "torchmetrics"


def install() -> None:
    """Make the first import of torchmetrics in this process a quick one."""
    if _NAME not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _QuickLoader(spec.loader)
        return spec


class _QuickLoader(Loader):
    """Loads the classes; the real loader runs when anything else is asked for.

    A torchmetrics whose classes cannot be loaded alone is loaded whole.
    """

    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        try:
            self._load_classes(module)
        except Exception:  # noqa: BLE001 - it may be built in any way
            for name in [name for name in sys.modules if name.startswith(f"{_NAME}.")]:
                del sys.modules[name]
            self._real.exec_module(module)
        else:
            module.__dict__["__getattr__"] = lambda name: self._from_all(module, name)

    def _load_classes(self, module: ModuleType) -> None:
        # What the real module has defined when its imports begin.
        about = vars(import_module(f"{_NAME}.__about__"))
        root = Path(str(module.__file__)).parent
        module.__dict__.update(
            {name: about[name] for name in about["__all__"]},
            _logger=logging.getLogger(_NAME),
            _PACKAGE_ROOT=str(root),
            _PROJECT_ROOT=str(root.parent),
        )
        import_module(f"{_NAME}.utilities")  # before `metric`, which needs it and which it needs
        module.__dict__["Metric"] = import_module(f"{_NAME}.metric").Metric
        collections = import_module(f"{_NAME}.collections")
        module.__dict__["MetricCollection"] = collections.MetricCollection

    def _from_all(self, module: ModuleType, name: str) -> Any:
        # Names that tools look for in any module, such as `_mock_name`, are not a reason.
        asked = name == "__all__" or not name.startswith("_")
        if asked and module.__dict__.pop("__getattr__", None) is not None:
            self._real.exec_module(module)
        try:
            return module.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}") from None
