"""Imports go down the floors only; torch and Hydra are imported where they are allowed.

The streets of the zoo are on the floors of their namesakes.
"""

import ast
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "flfast"
FILES = sorted(PACKAGE.rglob("*.py"))
FLOORS = (
    {"state"},
    {"tasks", "distributed"},
    {"models", "datamodules"},
    {"algorithms"},
    {"channel", "lit"},
    {"engines"},
    {"federation"},
    {"output"},
    {"checkpoints", "audits"},
    {"config"},
    {"setup"},
    {"commands"},
    {"train", "describe", "evaluate", "export", "predict", "report", "watch"},
    {"api"},
    {"doctor", "flower", "conformance"},
)
USERS_OF_THE_ZOO = {"flfast.conformance"}  # the command, whose rows are there
STREET = "files of the street itself"
PLACEHOLDERS = {"own", "found", "one", "first"}
FLOORS_OF_STREETS = {
    "algorithms": ({"contract"}, {"kit"}, {STREET}),
    "channel": (
        {"aggregations", "attacks", "compression", "faults", "secure"},
        {"privacy"},
        {STREET},
    ),
    "commands": ({"saved", "sweeps"}, {"doctor", "conformance"}),
    "output": ({"results"}, {"report", "loggers", "watch"}, {"callbacks"}),
}
HYDRA = {
    "flfast.train",
    "flfast.describe",
    "flfast.evaluate",
    "flfast.export",
    "flfast.predict",
    "flfast.api.*",
    "flfast.setup.*",
    "flfast.config.*",
    "flfast.commands.sweeps.*",
    "flfast.zoo.commands.conformance.row_files",
    "flfast.zoo.commands.conformance.row_jobs",
    "flfast.output.callbacks.comparison",
    "flfast.output.watch.*",
}
TORCH_FREE = {
    "flfast.train",
    "flfast.describe",
    "flfast.evaluate",
    "flfast.export",
    "flfast.predict",
    "flfast.api.running",
    "flfast.api.result",
    "flfast.config.*",
    "flfast.commands.sweeps.*",
    "flfast.conformance",
    "flfast.zoo.commands.conformance.*",
    "flfast.state.options",
    "flfast.state.plain_yaml",
    "flfast.state.plan",
    "flfast.checkpoints.folders",
    "flfast.checkpoints.policy",
    "flfast.checkpoints.compatibility",
    "flfast.state.stop_requests",
    "flfast.distributed.child",
    "flfast.state.injection",
    "flfast.state.machine",
    "flfast.state.environment",
    "flfast.state.messages",
    "flfast.state.output_streams",
    "flfast.state.regular_file",
    "flfast.output.results.*",
    "flfast.output.report.*",
    "flfast.output.callbacks.comparison",
    "flfast.output.callbacks.figures",
    "flfast.datamodules.partitions.*",
    "flfast.zoo.datamodules.partitions.*",
    "flfast.tasks.names",
    "flfast.output.watch.*",
}

POSIX_ONLY = {
    *(
        "fcntl",
        "grp",
        "pty",
        "pwd",
        "resource",
        "syslog",
        "termios",
        "tty",
        "os.fork",
        "os.getuid",
    ),
    *("os.geteuid", "os.O_NOFOLLOW", "os.O_NONBLOCK", "os.register_at_fork", "os.sysconf"),
    *("os.sched_getaffinity", "signal.SIGALRM", "signal.SIGHUP", "signal.SIGKILL"),
    *("signal.SIGUSR1", "signal.SIGUSR2"),
}


def name(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


@cache
def nodes(path):
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def imports(path):
    """Modules that a file imports anywhere, including those for type checkers."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            package = node.module == "flfast"
            yield from (f"flfast.{a.name}" for a in node.names) if package else [node.module]


def in_core(module):
    """The place in the core that has the floor of a module of the zoo."""
    return module.replace("flfast.zoo.", "flfast.", 1)


def street(module):
    return in_core(module).split(".")[1]


def room(module):
    _, here, *rest = in_core(module).split(".")
    places = (PACKAGE / here, PACKAGE / "zoo" / here)
    return rest[0] if rest and any((place / rest[0]).is_dir() for place in places) else STREET


def floor(name, floors):
    found = [number for number, names in enumerate(floors) if name in names]
    assert found, f"{name} is on no floor: add it to FLOORS"
    return found[0]


def matches(module, patterns):
    return any(fnmatch(module, pattern) for pattern in patterns)


def goes_up(importer, imported):
    here, there, floors = street(importer), street(imported), FLOORS
    if here == there:
        floors = FLOORS_OF_STREETS.get(here)
        here, there = room(importer), room(imported)
    return floors and here != there and floor(there, floors) >= floor(here, floors)


def test_imports_go_down():
    found = [
        f"{name(path)} imports {imported}"
        for path in FILES
        if path != PACKAGE / "__init__.py"
        for imported in imports(path)
        if imported.startswith("flfast.") and goes_up(name(path), imported)
    ]
    assert found == []


def test_nothing_imports_the_zoo():
    """A `_target_` in conf/ says where an option lives; tests and benchmarks may import it."""
    users = {
        name(path)
        for path in FILES
        if not name(path).startswith("flfast.zoo.")
        and any(module.startswith("flfast.zoo") for module in imports(path))
    }
    assert users == USERS_OF_THE_ZOO


def test_what_only_the_zoo_imports_is_in_the_zoo():
    """Except for options of the core, and what docs/own-algorithms.md has for users' own."""
    zoo = {path for path in FILES if PACKAGE / "zoo" in path.parents}
    users = {path for path in FILES if name(path) in USERS_OF_THE_ZOO}
    by_core = {module for path in {*FILES} - zoo - users for module in imports_or_names(path)}
    by_zoo = {module for path in zoo for module in imports_or_names(path)}
    told = [*(PACKAGE.parent / "conf").rglob("*.yaml"), PACKAGE.parent / "docs/own-algorithms.md"]
    text = "".join(path.read_text(encoding="utf-8") for path in told)
    alone = {name(path) for path in {*FILES} - zoo} & by_zoo - by_core
    assert [module for module in alone if module not in text] == []


def imports_or_names(path):
    """Modules that a file imports, and names that it imports from them, which may be modules."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
    yield from imports(path)


def test_there_are_at_most_seventeen_streets_and_the_zoo_has_no_others():
    def streets(place):
        return {path.name for path in place.iterdir() if path.is_dir() and path.name[0] != "_"}

    core = streets(PACKAGE) - {"zoo"}
    assert len(core) <= 17
    assert streets(PACKAGE / "zoo") <= core


def test_a_file_name_has_one_meaning():
    """But for `__main__`, and options of two groups, such as `privacy=local`."""
    names = Counter(path.name for path in FILES if not path.name.startswith("__"))
    twice = {name for name, times in names.items() if times > 1}
    assert twice == {"from_file.py", "local.py"}


def test_a_class_name_has_one_meaning():
    public = (
        node.name
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, times in Counter(public).items() if times > 1] == []


def named(node):
    """Names of parameters, functions, fields and attributes that a node defines."""
    if isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield node.name
    elif isinstance(node, ast.ClassDef):
        targets = (part.target for part in node.body if isinstance(part, ast.AnnAssign))
        yield from (target.id for target in targets)
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr


def test_a_name_says_what_it_holds():
    """Not only whose it is, how one came by it, or its place."""
    found = {
        f"{path.relative_to(PACKAGE).as_posix()}: {name}"
        for path in FILES
        for node in nodes(path)
        for name in named(node)
        if name.lstrip("_") in PLACEHOLDERS
    }
    assert found == set()


def is_set(node, names):
    """Whether an expression is a set, as far as it shows; `names` are variables that are."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.Sub)):
        return is_set(node.left, names) or is_set(node.right, names)
    if isinstance(node, ast.Call):
        called = node.func
        return getattr(called, "id", "") in {"set", "frozenset"} or (
            getattr(called, "attr", "") in {"union", "intersection", "difference"}
        )
    return isinstance(node, (ast.Set, ast.SetComp)) or getattr(node, "id", "") in names


def passes_over(node):
    """What a loop, a comprehension or a star passes over."""
    if isinstance(node, (ast.ListComp, ast.DictComp, ast.GeneratorExp)):
        return [part.iter for part in node.generators]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [part.value for part in node.elts if isinstance(part, ast.Starred)]
    return [node.iter] if isinstance(node, ast.For) else []


def test_no_algorithm_passes_over_a_set():
    """Names of leaves come out in another order in each process, and sums in other bits."""
    found = []
    for path in FILES:
        if "algorithms" not in path.relative_to(PACKAGE).parts:
            continue
        assigned = [node for node in nodes(path) if isinstance(node, ast.Assign)]
        names = {
            node.targets[0].id
            for node in assigned
            if isinstance(node.targets[0], ast.Name) and is_set(node.value, ())
        }
        passed = [over for node in nodes(path) for over in passes_over(node)]
        found += [f"{path.name}: {ast.unparse(over)}" for over in passed if is_set(over, names)]
    assert found == []


def test_the_package_itself_imports_no_other_package():
    """What else it imports of itself is for type checkers, or imported when it is used."""
    found = {module for module in imports(PACKAGE / "__init__.py") if "flfast" not in module}
    assert found == {"importlib", "typing"}
    program = "import flfast, sys; print(*(name for name in sys.modules if 'flfast.' in name))"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    names = ["state", "state.quick_torchmetrics", "state.version"]
    assert sorted(process.stdout.split()) == [f"flfast.{name}" for name in names]


def test_hydra_is_imported_only_where_allowed():
    users = {
        name(path)
        for path in FILES
        if any(module.split(".")[0] in {"hydra", "omegaconf"} for module in imports(path))
    }
    assert {module for module in users if not matches(module, HYDRA)} == set()


def test_modules_of_the_config_check_do_not_import_torch():
    modules = [name(path) for path in FILES if matches(name(path), TORCH_FREE)]
    assert len(modules) >= len(TORCH_FREE)
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr or "one of them imports torch"


def run_at_import(node):
    """What an import of the module runs: no body of a function, and no branch of a platform."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        children = [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults]
    elif isinstance(node, ast.Lambda) or "sys.platform" in condition(node):
        children = []
    else:
        children = ast.iter_child_nodes(node)
    yield node
    for child in filter(None, children):
        yield from run_at_import(child)


def condition(node):
    return ast.unparse(node.test) if isinstance(node, (ast.If, ast.IfExp)) else ""


def needed_at_import(path):
    for node in run_at_import(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def test_every_module_can_be_imported_without_posix():
    plugins = (PACKAGE.parent / "hydra_plugins").rglob("*.py")
    needs = {path: POSIX_ONLY.intersection(needed_at_import(path)) for path in [*FILES, *plugins]}
    assert {str(path): found for path, found in needs.items() if found} == {}
