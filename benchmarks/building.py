"""A workload's model and data as plain objects, from the YAML files that flfast reads.

What benchmarks that import torch need of flfast is imported here, and nowhere else.
"""

import json
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from torch import nn

from benchmarks.checkouts import ROOT
from benchmarks.flops import best_seconds, flops_per_example, peak_flops
from benchmarks.workload import AUGMENTED, Workload
from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.source import examples_from
from flfast.state.injection import call_with
from flfast.state.randomness import generator, seed_torch

__all__ = [
    "Examples",
    "best_seconds",
    "build_model",
    "flops_per_example",
    "generator",
    "load_examples",
    "peak_flops",
    "read_workload",
    "seed_torch",
]

NUM_CLASSES = 10


def read_workload(path: Path) -> Workload:
    """Workload of a JSON file of its fields."""
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for name, value in fields.items():
        fields[name] = tuple(value) if isinstance(value, list) else value
    return Workload(**fields)


def build_model(workload: Workload) -> nn.Module:
    """The workload's model, with the options of its YAML file."""
    offers = {"input_shape": workload.shape, "num_classes": NUM_CLASSES}
    model = call_with(_from_yaml("model", workload.model, {}), **offers)
    assert isinstance(model, nn.Module)
    return model


def load_examples(workload: Workload) -> Examples:
    """The workload's data, the same numbers that flfast reads."""
    settings: dict[str, Any]
    name, settings = "pfllib", {"root": workload.root}
    if workload.root is None and workload.uneven:
        name = "uneven"
        settings = {
            "shape": workload.shape,
            "train_sizes": workload.train_sizes,
            "test_sizes": workload.test_sizes,
        }
    elif workload.root is None:
        name = "images" if workload.images else "synthetic"
        settings = {
            "shape": workload.shape,
            "num_examples": workload.num_train,
            "num_test": workload.num_test,
            "num_clients": workload.num_clients,
            **(AUGMENTED if workload.augmented else {}),
        }
    examples = examples_from(_from_yaml("data", name, settings), seed=0, task=None)
    assert isinstance(examples, Examples)
    return examples


def _from_yaml(group: str, option: str, settings: dict[str, Any]) -> Callable[..., Any]:
    folders = (ROOT / "conf", ROOT / "benchmarks" / "conf")
    found = [path for folder in folders if (path := folder / group / f"{option}.yaml").is_file()]
    config = OmegaConf.merge(OmegaConf.load(found[0]), OmegaConf.create(settings))
    options: Any = OmegaConf.to_container(config, resolve=True)
    target = options.pop("_target_")
    options.pop("_partial_", None)
    options.pop("defaults", None)  # of other groups
    module, _, name = target.rpartition(".")
    return partial(getattr(import_module(module), name), **options)
