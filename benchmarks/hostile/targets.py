"""Configs of strangers' runs that name commands: nothing of them may run."""

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from benchmarks.hostile.command import MESSAGE, Ended, run
from flfast import evaluate, export, train

_TINY = (
    *("data=synthetic", "data.num_examples=60", "data.num_test=20", "data.num_clients=4"),
    *(
        "partition=iid",
        "partition.num_clients=3",
        "model=mlp",
        "rounds=1",
        "local_epochs=1",
        "strategy=single",
        "trainer.devices=1",
    ),
)
MARK = "marked"
"""A file that every one of these targets makes, if it is called."""

MODULE = "hostile_module"
"""A module in the run's folder that makes the file when it is imported."""


def _targets(mark: str) -> list[tuple[str, dict[str, Any]]]:
    """(target, arguments); each makes the file `mark` if it is called."""
    code = f"open({mark!r}, 'w').close()"
    shell = f"touch {mark}"
    path = {"_target_": "pathlib.Path", "_args_": [mark]}
    opened = {"_target_": "builtins.open", "file": "hostile.pt", "mode": "rb"}
    symlink = {"_target_": "os.symlink"}
    python = ["python3", "-c", code]
    return [
        ("os.system", {"command": shell}),
        ("os.popen", {"cmd": shell}),
        ("os.mkdir", {"path": mark}),
        ("os.makedirs", {"name": mark}),
        ("os.mknod", {"path": mark}),
        ("os.symlink", {"src": "/", "dst": mark}),
        ("os.execv", {"_args_": ["/bin/sh", ["sh", "-c", shell]]}),
        ("os.spawnv", {"_args_": [0, "/bin/sh", ["sh", "-c", shell]]}),
        ("posix.system", {"command": shell}),
        ("subprocess.run", {"args": python}),
        ("subprocess.Popen", {"args": python}),
        ("subprocess.check_output", {"_args_": [python]}),
        ("subprocess.getoutput", {"cmd": shell}),
        ("os.spawnvp", {"_args_": [0, "sh", ["sh", "-c", shell]]}),
        ("builtins.exec", {"_args_": [code]}),
        ("builtins.eval", {"_args_": [code]}),
        ("builtins.open", {"file": mark, "mode": "w"}),
        ("builtins.__import__", {"name": MODULE}),
        ("importlib.import_module", {"name": MODULE}),
        (f"{MODULE}.anything", {}),
        ("runpy.run_module", {"mod_name": MODULE}),
        ("runpy.run_path", {"path_name": f"{MODULE}.py"}),
        ("pathlib.Path.touch", {"_args_": [mark]}),
        ("pathlib.Path.write_text", {"_args_": [path, "x"]}),
        ("shutil.copyfile", {"src": "/etc/hostname", "dst": mark}),
        ("timeit.timeit", {"stmt": code, "number": 1}),
        ("cProfile.run", {"statement": code}),
        ("pickle.load", {"_args_": [opened]}),
        ("torch.load", {"f": "hostile.pt", "weights_only": False}),
        ("numpy.load", {"file": "hostile.npy", "allow_pickle": True}),
        ("joblib.load", {"filename": "hostile.npy"}),
        ("pandas.read_pickle", {"filepath_or_buffer": "hostile.pt"}),
        ("yaml.unsafe_load", {"stream": f"!!python/object/apply:os.system ['{shell}']"}),
        ("logging.FileHandler", {"filename": mark}),
        (
            "logging.config.dictConfig",
            {"config": {"version": 1, "handlers": {"h": {"()": MODULE}}}},
        ),
        ("hydra.utils.call", {"_args_": [{"_target_": "os.system", "command": shell}]}),
        ("functools.reduce", {"_args_": [{**symlink, "_partial_": True}, ["/", mark]]}),
        ("flfast.config.run_folder.new_folder", {"name": mark}),
        ("operator.call", {"_args_": [{"_target_": "os.system", "_partial_": True}, shell]}),
        ("torch.utils.data.get_worker_info", {"a": {"_target_": "os.system", "command": shell}}),
        ("functools.cache", {"user_function": symlink | {"src": "/", "dst": mark}}),
        ("sklearn.utils._joblib.delayed", {"function": {"_target_": "os.mkdir", "path": mark}}),
    ]


_PLACES = (
    *("algorithm", "model", "data", "partition", "optimizer", "sampler", "lr_schedule", "shift"),
    *("aggregation", "compression", "privacy", "selection", "devices", "work", "stop", "adapter"),
    *("trainer.plugins", "trainer.callbacks", "algorithm.mu", "model.hidden", "data.num_clients"),
    *("schedule.phases", "engine.stack", "secure", "pace", "callbacks.mine", "logger.mine"),
)
_HIDINGS = ("plain", "list", "nested", "interpolated", "resolver")


def cases(num: int, seed: int) -> Iterator[tuple[int, str, str, str]]:
    """(number of the target, place, hiding, command) of `num` configs, all targets among them."""
    rng = random.Random(f"targets {seed}")
    known = [*range(len(_targets("")))]
    for number in range(num):
        command = rng.choice(("evaluate", "export", "Run"))
        yield known[number % len(known)], rng.choice(_PLACES), rng.choice(_HIDINGS), command


def trained(folder: Path) -> Path:
    """A finished run, whose config the cases change."""
    ended = run(train.main, [*_TINY, f"hydra.run.dir={folder / 'run'}"], folder)
    if ended.verdict != "done":
        raise RuntimeError(ended.said)
    return folder / "run"


def prepared(folder: Path, number: int) -> tuple[str, dict[str, Any]]:
    """Target and arguments of a number, and the files that they use in `folder`."""
    mark = folder / MARK
    (folder / f"{MODULE}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    for name in ("hostile.pt", "hostile.npy"):
        (folder / name).write_text(f"cos\nsystem\n(S'touch {mark}'\ntR.")
    return _targets(str(mark))[number]


def judged(case: tuple[int, str, str, str], folder: Path) -> tuple[str, Ended]:
    """Whether opening a run with the case's config in `folder` ran its code."""
    number, place, hiding, command = case
    target, arguments = prepared(folder, number)
    path = folder / "run" / ".hydra" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    _put(config, place, _hidden(target, arguments, hiding, config))
    path.write_text(yaml.safe_dump(config))
    ended = run(_command(command, folder / "run"), _words(command, folder / "run"), folder)
    if (folder / MARK).exists():
        return "code ran", ended
    return ended.verdict, ended


def _command(name: str, folder: Path) -> Callable[[], None]:
    def opened() -> None:
        from flfast import ConfigError, Run

        try:
            _ = Run(str(folder)).model
        except ConfigError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(MESSAGE)

    return {"evaluate": evaluate.main, "export": export.main, "Run": opened}[name]


def _words(name: str, folder: Path) -> list[str]:
    return {"evaluate": [f"run={folder}"], "export": [f"run={folder}", "format=torch"]}.get(
        name, []
    )


def _hidden(target: str, arguments: dict[str, Any], hiding: str, config: Any) -> Any:
    node = {"_target_": target, **json.loads(json.dumps(arguments))}
    if hiding == "list":
        return [node]
    if hiding == "nested":
        return {"_target_": "builtins.dict", "a": [{"b": node}]}
    if hiding == "interpolated":
        config["words"] = {"name": target}
        return {**node, "_target_": "${words.name}"}
    if hiding == "resolver":
        return {**node, "_target_": f"${{oc.env:FLFAST_HOSTILE,{target}}}"}
    return node


def _put(config: dict[str, Any], place: str, value: Any) -> None:
    *parents, name = place.split(".")
    for parent in parents:
        if not isinstance(config.get(parent), dict):
            config[parent] = {}
        config = config[parent]
    config[name] = value
