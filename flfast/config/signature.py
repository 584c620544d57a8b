"""Reads the signature of a `_target_` from its source, without importing it.

Importing torch takes seconds, too long to report a misspelt option. Signatures come from syntax
trees. Annotations are evaluated if they need `_IMPORTABLE` modules and builtins only.
"""

import ast
import builtins
import importlib
import sys
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple, get_args

from flfast.state.capabilities import NEUTRAL, Capabilities

_IMPORTABLE = {
    *("typing", "collections.abc", "annotated_types", "pathlib"),
    *("flfast.state.options", "flfast.state.capabilities"),
}


_RECORD = "dataclass(frozen=True, kw_only=True)"
"""The decorator of records whose fields are options; those of others are not read."""


class Parameter(NamedTuple):
    """One parameter of a target.

    Attributes:
        annotation: its type, with the range if there is one; None if the source does not tell.
        required: whether it has no default.
    """

    annotation: Any
    required: bool


class Signature(NamedTuple):
    """Parameters that a target accepts.

    Attributes:
        parameters: by name, without `self`.
        open_ended: whether other keyword arguments are accepted (`**kwargs`).
        capabilities: what the annotation of the returned object says.
    """

    parameters: dict[str, Parameter]
    open_ended: bool
    capabilities: Capabilities = NEUTRAL


class _Unreadable(Exception):  # noqa: N818 - a signal, not an error
    """The source does not tell: compiled code or a dynamic definition."""


@cache
def read_signature(target: str) -> Signature | None:
    """Signature of a function or class by its dotted path; re-exports are followed.

    None if the source does not tell (compiled code, dynamic definitions).

    Raises:
        LookupError: if the module does not exist, or does not define the name.
    """
    module, _, name = target.rpartition(".")
    if module in sys.builtin_module_names:  # `math` is one of some builds of Python
        return None
    path = module_path(module) if module else None
    if path is None:
        raise LookupError(f"module {module or target}")
    try:
        return _signature(module, name)
    except _Unreadable:
        return None


@cache
def module_path(module: str) -> Path | None:
    """File of a module, without importing its packages; None if the module does not exist."""
    first, *rest = module.split(".")
    spec = PathFinder.find_spec(first)
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return Path(spec.origin) if spec is not None and spec.origin else None


@cache
def _syntax_tree(module: str) -> ast.Module:
    path = module_path(module)
    if path is None or path.suffix != ".py":
        raise _Unreadable(module)
    return ast.parse(path.read_text(encoding="utf-8"))


def _find_definition(module: str, name: str) -> tuple[str, ast.stmt]:
    """(module, statement) that defines a name, following `from x import y`."""
    for node in reversed(_syntax_tree(module).body):
        match node:
            case ast.FunctionDef(name=found) | ast.ClassDef(name=found) if found == name:
                return module, node
            case ast.Assign(targets=[ast.Name(id=found)]) if found == name:
                return module, node
            case ast.ImportFrom(names=names):
                for alias in names:
                    if (alias.asname or alias.name) == name:
                        return _find_definition(_absolute_module(module, node), alias.name)
    if not _may_define(module, name):
        raise LookupError(f"{name} in {module}")
    raise _Unreadable(f"{module}.{name}")


def _may_define(module: str, name: str) -> bool:
    """Whether a module could define a name dynamically, by a star import, or as a submodule."""
    for node in ast.walk(_syntax_tree(module)):
        match node:
            case ast.FunctionDef(name="__getattr__") | ast.alias(name="*"):
                return True
            case ast.FunctionDef(name=found) | ast.ClassDef(name=found) | ast.Name(id=found):
                if found in {name, "globals", "exec"}:
                    return True
            case ast.alias(name=found, asname=renamed):
                if name in {found, renamed}:
                    return True
    return module_path(f"{module}.{name}") is not None


def _absolute_module(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    path = module_path(module)
    is_package = path is not None and path.name == "__init__.py"
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*parts, node.module] if node.module else parts)


def _signature(module: str, name: str) -> Signature:
    module, node = _find_definition(module, name)
    called: ast.stmt | None = node
    if isinstance(node, ast.ClassDef):
        signature = _class_signature(module, node)
        methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        called = methods.get("__call__")
    elif isinstance(node, ast.FunctionDef):
        signature = _signature_of_args(module, node.args, skip=0)
    else:
        raise _Unreadable(name)
    if not isinstance(called, ast.FunctionDef):
        return signature
    returned = get_args(_evaluate_annotation(module, called.returns))
    said = (part for part in returned if isinstance(part, Capabilities))
    return signature._replace(capabilities=next(said, NEUTRAL))


def _class_signature(module: str, node: ast.ClassDef) -> Signature:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return _signature_of_args(module, item.args, skip=1)
    if not node.decorator_list and not node.bases:
        return Signature({}, open_ended=False)
    if any(ast.unparse(decorator) == _RECORD for decorator in node.decorator_list):
        return Signature(_fields(module, node), open_ended=False)
    if node.decorator_list or not isinstance(node.bases[0], ast.Name):
        raise _Unreadable(node.name)
    return _signature(module, node.bases[0].id)


def _fields(module: str, node: ast.ClassDef) -> dict[str, Parameter]:
    """Fields of a record, beside those that it inherits."""
    names = [base.id for base in node.bases if isinstance(base, ast.Name)]
    lines = {ast.unparse(item): item for item in node.body if isinstance(item, ast.AnnAssign)}
    is_special = any("ClassVar" in line or "init=" in line for line in lines)
    if is_special or len(names) < len(node.bases):
        raise _Unreadable(node.name)
    inherited = [_signature(module, name).parameters for name in reversed(names)]
    fields = {name: parameter for base in inherited for name, parameter in base.items()}
    for item in lines.values():
        annotation = _evaluate_annotation(module, item.annotation)
        fields[ast.unparse(item.target)] = Parameter(annotation, required=item.value is None)
    return fields


def _signature_of_args(module: str, args: ast.arguments, *, skip: int) -> Signature:
    positional = [*args.posonlyargs, *args.args]
    required = [None] * (len(positional) - len(args.defaults))
    pairs = [*zip(positional, [*required, *args.defaults], strict=True)][skip:]
    pairs += zip(args.kwonlyargs, args.kw_defaults, strict=True)
    parameters = {
        arg.arg: Parameter(_evaluate_annotation(module, arg.annotation), required=default is None)
        for arg, default in pairs
    }
    return Signature(parameters, open_ended=args.kwarg is not None)


def _evaluate_annotation(module: str, annotation: ast.expr | None) -> Any:
    if annotation is None:
        return None
    try:
        code = compile(ast.Expression(annotation), module, "eval")
        return eval(code, {}, _namespace(module))  # only annotations of installed code
    except Exception:  # noqa: BLE001 - annotations may raise anything; then the type is unknown
        return None


@cache
def _namespace(module: str) -> "_Namespace":
    return _Namespace(module)


class _Namespace(dict[str, Any]):
    """Namespace of a module that looks names up in the source, when an annotation needs them."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self._module = module
        self._is_ours = module.startswith("flfast.")

    def __missing__(self, name: str) -> Any:
        self[name] = self._find(name)
        return self[name]

    def _find(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        for node in _syntax_tree(self._module).body:
            names = node.names if isinstance(node, ast.ImportFrom) else ()
            originals = {alias.asname or alias.name: alias.name for alias in names}
            if isinstance(node, ast.ImportFrom) and name in originals:
                source = _absolute_module(self._module, node)
                if source in _IMPORTABLE:
                    return getattr(importlib.import_module(source), originals[name])
                return _namespace(source)[originals[name]]
            if isinstance(node, ast.ClassDef) and node.name == name and self._is_ours:
                return Any  # what options return, beside which they say what it needs
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == name for t in node.targets
            ):
                code = compile(ast.Expression(node.value), self._module, "eval")
                return eval(code, {}, self)
        raise KeyError(name)
