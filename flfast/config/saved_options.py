"""Words of the commands about saved runs, which `flfast.Run` takes, too. Torch-free."""

import importlib.util
from collections.abc import Mapping, Sequence

from flfast.config.errors import ConfigError

EVALUATE: Mapping[str, Sequence[str] | None] = {
    "run": None,
    "allow": None,
    "checkpoint": None,
    "model": None,
    "split": ("test", "val", "train", "global"),
    "personal": ("true", "false"),
    "predictions": ("csv", "parquet"),
    "output": None,
}
"""Allowed values of the options of `flfast.evaluate`; None allows any."""

EXPORT: Mapping[str, Sequence[str] | None] = {
    "run": None,
    "format": ("torch", "onnx"),
    "allow": None,
    "client": None,
    "checkpoint": None,
    "model": None,
    "output": None,
}
"""The same of `flfast.export`."""

_ONNX = ("onnx", "onnxscript", "onnxruntime")
_REPEATED = "allow"


def evaluate_options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options of `flfast.evaluate`, and overrides of the run's config.

    Raises:
        ConfigError: one line per word that is wrong, or if a library is missing.
    """
    options, overrides = read_options(words, EVALUATE)
    if options.get("predictions") == "parquet" and not importlib.util.find_spec("pyarrow"):
        raise ConfigError("predictions=parquet needs pyarrow: pip install 'flfast[parquet]'")
    return options, overrides


def export_options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options of `flfast.export`, and overrides of the run's config.

    Raises:
        ConfigError: one line per word that is wrong, or if a library is missing.
    """
    options, overrides = read_options(words, EXPORT)
    if "format" not in options:
        raise ConfigError("format is missing; allowed: torch, onnx")
    client = options.get("client")
    if client is not None and not (client.isascii() and client.isdigit()):
        raise ConfigError(f"client={client}: allowed: the number of a client")
    missing = [name for name in _ONNX if not importlib.util.find_spec(name)]
    if options["format"] == "onnx" and missing:
        raise ConfigError(f"format=onnx needs {', '.join(missing)}: pip install 'flfast[onnx]'")
    return options, overrides


def allowed_names(options: Mapping[str, str]) -> list[str]:
    """What `allow=A,B` names."""
    return [name for name in options.get(_REPEATED, "").split(",") if name]


def read_options(
    words: Sequence[str], known: Mapping[str, Sequence[str] | None]
) -> tuple[dict[str, str], list[str]]:
    """Divide the words of a command into its own options and overrides of the run's config.

    Args:
        words: of the command line, each `key=value`; `allow` may be given several times.
        known: values that are allowed by option; None allows any.

    Raises:
        ConfigError: one line per word that is wrong.
    """
    options: dict[str, str] = {}
    overrides: list[str] = []
    problems: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key or key.startswith("-"):
            problems.append(f"{word}: not a setting; allowed: key=value")
        elif key not in known:
            overrides.append(word)
        elif not value:
            problems.append(f"{word}: has no value")
        elif (allowed := known[key]) is not None and value not in allowed:
            problems.append(f"{word}: allowed: {', '.join(allowed)}")
        else:
            earlier = [options[key]] if key == _REPEATED and key in options else []
            options[key] = ",".join([*earlier, value])
    if not any(word.startswith("run=") for word in words):
        problems.append("run is missing; set it to the folder of a run")
    if problems:
        raise ConfigError("\n".join(problems))
    return options, overrides
