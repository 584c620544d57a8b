"""Odd values of any options: one message that names what is wrong, or a run whose numbers hold."""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from benchmarks.hostile.command import Ended, run
from flfast import train
from flfast.output.results.table import read_rows

ROUNDS = 2
_TINY = (
    *("model=mlp", "local_epochs=1", "strategy=single", "trainer.devices=1"),
    *("callbacks=none", f"rounds={ROUNDS}"),
)
_DATA = (
    *("data=synthetic", "data.num_examples=60", "data.num_test=20", "data.num_classes=3"),
    *("data.num_clients=4", "partition.min_samples=2"),
)
_SHAPES = {"cnn": "[1,16,16]", "lenet": "[1,28,28]", "pfl_cnn": "[1,8,8]", "resnet18": "[3,8,8]"}
_WANTS_SERVER_EXAMPLES = {"feddf", "fltrust", "fedgen"}
_LEFT_OUT = {"experiment", "hparams_search", "hydra", "callbacks", "wandb", "mlflow"}
"""Downloads, long runs, and servers of others."""
_LONG = ("rounds", "epochs", "local_steps", "inner_steps")
_LIKE: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (1, 2, 3, 5, 8, 0),
    float: (0.1, 0.3, 0.5, 0.9, 1.0, 2.0, 0.0, 1e-9),
    list: ("[1]", "[0.5]", "[3,2]"),
}
"""Values that may be meant, by the type of the default."""
_VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 10**9, 10**22, 0.5, 1.5, 1e-9, -0.3, 1e30, "nan", "inf", "-inf"),
    *(
        "null",
        "true",
        "false",
        "auto",
        "text",
        "''",
        "ünï",
        "a.b",
        "/nowhere",
        "../..",
        "1e",
        "0x1",
    ),
    *("[]", "{}", "[1,2]", "[null]", "[[1]]", "{a: 1}", "{_target_: os.getcwd}", "[nan]"),
    *("${seed}", "${nothing}", "${optimizer.lr}", "'1'", "' 1 '", "1_000", "1,2", "-0.0"),
)


def cases(num: int, seed: int) -> Iterator[list[str]]:
    """Overrides of `num` commands; each option of each group is chosen before one comes twice."""
    rng = random.Random(f"options {seed}")
    options = [*_options()]
    rng.shuffle(options)
    for number in range(num):
        group, name, keys = options[number % len(options)]
        words = [f"{group}={name}"] if group else []
        if group != "data":
            shape = _SHAPES.get(name, "[4]")
            words += [*_DATA, f"data.shape={shape}"] if group != "partition" else [*_DATA[:5]]
        if name in _WANTS_SERVER_EXAMPLES:
            words.append("split.server_examples=6")
        chosen = rng.sample([*keys], min(len(keys), rng.choice((0, 1, 1, 2))))
        yield words + [f"{key}={_value(key, keys[key], rng)}" for key in chosen]


def judged(words: list[str], folder: Path) -> tuple[str, Ended]:
    """How the command of a case ends: as `Ended.verdict`, or what is wrong in silence."""
    ended = run(train.main, [*_TINY, *words, f"hydra.run.dir={folder / 'run'}"], folder)
    if ended.verdict != "done":
        return ended.verdict, ended
    wrong = _wrong(folder / "run", ended.said)
    if wrong:
        return wrong, ended
    again = run(train.main, [*_TINY, *words, f"hydra.run.dir={folder / 'again'}"], folder)
    if again.code or _numbers(folder / "run") != _numbers(folder / "again"):
        return "silent: two runs differ", again
    return "done", ended


def _wrong(folder: Path, said: str) -> str:
    """What a finished run does not say."""
    if not (folder / "metrics.csv").exists():  # logger=none
        return ""
    rows = _numbers(folder)
    wanted = OmegaConf.select(OmegaConf.load(folder / ".hydra" / "config.yaml"), "rounds")
    if not rows or (rows[-1]["round"] != wanted and "stop" not in said):
        return "silent: rounds are missing"
    losses = [row.get("train/loss", 0.0) for row in rows[1:]]
    if (
        not all(map(math.isfinite, losses))
        and "diverged" not in said
        and "nan" not in said.lower()
    ):
        return "silent: losses that are not finite"
    return ""


def _numbers(folder: Path) -> list[dict[str, float]]:
    if not (folder / "metrics.csv").exists():
        return []
    slow = ("time/", "train/samples_per_s")
    return [
        {
            name: float(cell)
            for name, cell in row.items()
            if cell and not name.startswith(slow) and _is_number(cell)
        }
        for row in read_rows(folder / "metrics.csv")
    ]


def _is_number(cell: str) -> bool:
    try:
        return not math.isnan(float(cell))
    except ValueError:
        return False


def _options() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(group, option, its defaults by key) of `conf/`; the top level has no group."""
    conf = Path(train.CONF)
    for path in sorted([conf / "config.yaml", *conf.glob("*/*.yaml")]):
        group = path.parent.name if path.parent != conf else ""
        if _LEFT_OUT.isdisjoint({group, path.stem}):
            content = OmegaConf.to_container(OmegaConf.load(path))
            name = path.stem if group else ""
            yield group, name, dict(_leaves(content, f"{group}." if group else ""))


def _leaves(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, child in node.items():
        if isinstance(child, dict):
            yield from _leaves(child, f"{prefix}{name}.")
        elif name not in {"_target_", "_partial_", "defaults"} and "@" not in name:
            yield f"{prefix}{name}", child


def _value(key: str, default: Any, rng: random.Random) -> Any:
    """Any value, but none that is just a long run."""
    like = _LIKE.get(type(default), _VALUES)
    while True:
        value = rng.choice(like if rng.random() < 0.6 else _VALUES)
        is_long = isinstance(value, int | float) and value > 10
        if not (is_long and any(word in key for word in _LONG)):
            return value
