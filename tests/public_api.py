"""The public API as text, one thing a line: `python tests/public_api.py` writes public_api.txt.

What is public is said in docs/public-api.md; all lines are read from the package and that page.
"""

import ast
import json
import re

from pages import PAGES, ROOT, named_files, page, programs

import flfast
from flfast.config import signature
from flfast.config.schema import OptimizerSettings, SchedulerSettings
from flfast.describe import describe, entries
from flfast.output.results.columns import CALLBACK_TABLES, COLUMNS, VIEWS
from flfast.output.results.outcome import RESULT
from flfast.output.results.run_files import OF_A_RUN, OF_LOGGERS
from flfast.state.stop_requests import EXIT_STOPPED
from flfast.tasks.names import METRICS, headline

RECORD = ROOT / "tests" / "public_api.txt"
PACKAGE = ROOT / "flfast"
OURS = ("flfast.", "hydra_plugins.")
CHECKED = {*OptimizerSettings.model_fields, *SchedulerSettings.model_fields}
RECIPES = ("experiment=", "hparams_search=", "hydra=")
"""Options whose keys are not their own."""

BOUNDS = {
    "exclusiveMinimum": ">",
    "minimum": ">=",
    "exclusiveMaximum": "<",
    "maximum": "<=",
    "minLength": "length >=",
    "minItems": "items >=",
    "maxItems": "items <=",
}


def lines(document=None):
    """All lines, sorted."""
    document = document or describe()
    return sorted(
        {
            *(*options(document), *keys(document), *columns(), *files(), *commands(), *names()),
            *hooks(),
        }
    )


def options(document):
    """Options of groups, and which one is chosen by default."""
    for group, named in document["$defs"].items():
        yield from (f"option {group}={name}" for name in named)
    for group, schema in document["properties"].items():
        if "option" in schema:
            yield f"option {group} is {schema['option']} by default"


def keys(document):
    """Keys with type, range, default, and whether a phase may change them.

    Types of libraries are left out: they differ between versions of the library.
    """
    found = [one for one in entries(document) if not one[0].startswith(RECIPES)]
    targets = {
        (option, key.rpartition(".")[0]): str(schema.get("default", ""))
        for option, key, schema in found
        if key.endswith("._target_")
    }
    for option, key, schema in found:
        if "properties" in schema or key.endswith("._target_"):
            continue
        place, _, name = key.rpartition(".")
        is_ours = targets.get((option, place), OURS[0]).startswith(OURS) or name in CHECKED
        types = allowed(schema) if is_ours else ""
        default = json.dumps(schema["default"]) if "default" in schema else "???"
        words = [f"key {option} {key}".replace("  ", " "), f": {types}" * bool(types)]
        yield "".join(words) + f" = {default}" + ", in phases" * schema["phase"]


def allowed(schema):
    """Types and ranges of a schema, in words.

    >>> allowed({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]})
    'integer >= 1 | "auto"'
    """
    if "anyOf" in schema:
        return " | ".join(map(allowed, schema["anyOf"]))
    if {"enum", "const"} & {*schema}:  # pydantic has had both for a single value
        return " | ".join(map(json.dumps, schema.get("enum", [schema.get("const")])))
    words = [schema.get("type", "")]
    words += [f"of ({allowed(schema['items'])})"] if "items" in schema else []
    words += [f"{sign} {schema[name]:.12g}" for name, sign in BOUNDS.items() if name in schema]
    return " ".join(words)


def columns():
    """Columns of CSV files: the tables, metrics of all tasks, and what rows are given by name."""
    headlines = [headline(names) for task, names in METRICS.items() if task != "module"]
    spread = [f"{name}_{part}" for name in headlines for part in ("std", "worst10")]
    metrics = [name for names in METRICS.values() for name in names]
    views = [f"{view}/{name}" for view in VIEWS for name in metrics]
    views += [f"{view}/{name}" for view in VIEWS[1:] for name in spread]
    tables = {"metrics.csv": [*COLUMNS, *views, *added_columns()], **CALLBACK_TABLES}
    for table, found in tables.items():
        yield from (f"column {table} {name}" for name in found)


def added_columns():
    """Names in `row["privacy/epsilon"] =` and `{"attack/success":`, anywhere in the package."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        yield from re.findall(r'\b(?:row\[|return \{)"(\w+/\w+)"[\]:]', text)


def files():
    """Files of a run, and what a process tells others."""
    yield from (f"file {name}" for name in (*OF_A_RUN, *OF_LOGGERS, RESULT))
    yield f"exit code {EXIT_STOPPED}"
    told = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    for suffix in ("py", "yaml", "h", "cpp"):
        for path in (*PACKAGE.rglob(f"*.{suffix}"), *(ROOT / "conf").rglob(f"*.{suffix}")):
            found = re.findall(r"\bFLFAST_[A-Z_]+", path.read_text(encoding="utf-8"))
            yield from (f"environment {name}" for name in found if name in told)


def commands():
    """Words and flags of the commands."""
    for path in PACKAGE.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.stem != "__init__":
            words = re.findall(
                r'^  (\w+=)|\[(\w+=)FILE|add_argument\(\s*"([\w-]+)"(?:, "(-\w+)")?', text, re.M
            )
            words = [word for found in words for word in found if word]
            yield from (f"command flfast.{path.stem} {word}".rstrip() for word in ("", *words))


def names():
    """Names of Python with their signatures: those of the page, and what programs import."""
    for path in re.findall(r"`(flfast(?:\.\w+)*)`", page("public-api")):
        yield from described(path)
    for text in (path.read_text(encoding="utf-8") for path in PAGES):
        files = [code for name, code in named_files(text).items() if name.endswith(".py")]
        for code in (*programs(text), *files):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and node.module.startswith("flfast"):
                    for alias in node.names:
                        yield from described(f"{node.module}.{alias.name}")


def hooks():
    """Hooks of callbacks, and what they get of a run; a test compares the page with the code."""
    for name in re.findall(r"^\| `(\w[\w.]*(?:\(.*?\))?)` \|", page("callbacks"), re.M):
        if "(" in name or "." in name:
            yield f"hook {name}"


def described(path):
    """Lines of a module, a class or a function."""
    if path in {"flfast.describe", "flfast.train"}:  # commands
        return
    place = signature.module_path(path)
    if path == "flfast":
        for name in flfast.__all__:
            yield from definition(f"flfast.{name}", flfast._MODULES[name], name)
    elif place:
        text = place.read_text(encoding="utf-8")
        lists = re.findall(r"__all__ \+?= (\[.*\])", text)
        listed = [name for found in lists for name in json.loads(found)]
        for name in listed or defined(ast.parse(text)):
            yield from definition(f"{path}.{name}", path, name)
    else:
        module, _, name = path.rpartition(".")
        yield from definition(path, module, name)


def defined(tree):
    """Public names that a module defines itself."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        found = [getattr(one, "id", getattr(one, "name", "_")) for one in targets]
        yield from (name for name in found if name[0] != "_")


def definition(path, module, name):
    """Lines of a definition, which may be imported from elsewhere."""
    try:
        _, node = signature._find_definition(module, name)
    except signature._Unreadable:  # a constant with an annotation
        node = None
    if node is None:
        yield f"python {path}"
    elif isinstance(node, ast.FunctionDef):
        yield f"python {path}{called(node)}"
    elif isinstance(node, ast.Assign):
        yield f"python {path} = {ast.unparse(node.value)}"
    else:
        bases = ", ".join(map(ast.unparse, node.bases))
        yield f"python class {path}" + f"({bases})" * bool(bases)
        for member in node.body:
            if isinstance(member, ast.AnnAssign) and member.target.id[0] != "_":
                yield f"python {path}.{ast.unparse(member)}"
            elif isinstance(member, ast.FunctionDef) and re.match(
                "[^_]|__(?!post_init|repr)", member.name
            ):
                decorators = "".join(f"@{ast.unparse(one)} " for one in member.decorator_list)
                yield f"python {decorators}{path}.{member.name}{called(member)}"


def called(node):
    """Parameters and result of a function."""
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){result}"


if __name__ == "__main__":
    RECORD.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
