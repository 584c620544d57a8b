"""What holds for every data source and its YAML; both are found by listing the folder."""

import inspect
import re
from pathlib import Path

import hydra
import pytest
import torch
from omegaconf import OmegaConf
from pages import page
from sampling import rotating

from flfast.config.composition import compose
from flfast.datamodules.sources.source import examples_from
from flfast.state.injection import asks_for

CONF = Path(__file__).parents[3] / "conf" / "data"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "lightning")


def signature(config):
    return inspect.signature(hydra.utils.get_method(config["_target_"])).parameters


@pytest.mark.parametrize("name", NAMES)
def test_the_yaml_names_every_option_of_the_source_and_no_other(name):
    config = OmegaConf.load(CONF / f"{name}.yaml")
    parameters = signature(config)
    keys = set(config) - {"_target_", "_partial_", "defaults"}
    assert set(parameters) - {"seed", "task", "kept"} == keys
    assert config["_partial_"] is True
    for key, parameter in parameters.items():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        # In training nothing is kept; all other values are in the YAML.
        assert parameter.default is (None if key == "kept" else inspect.Parameter.empty)


def tasks():
    """The last cell about each source on docs/data.md, by its name."""
    rows = re.findall(r"^\| (`.*?`) \|.*\| ([^|]+) \|$", page("data"), flags=re.MULTILINE)
    return {name: task for cell, task in rows for name in re.findall(r"`(\w+)", cell)}


@pytest.mark.parametrize("name", rotating(NAMES, every=4))
def test_data_that_may_lack_labels_choose_a_partition_that_needs_none(name):
    task = tasks().get(name)
    # `task` in backticks: that key chooses. `copies` has the task of its source, MNIST.
    labelled = task == "classification" or name == "copies" or (task and "`task`" in task)
    if "targets" in OmegaConf.load(CONF / f"{name}.yaml") or not labelled:
        config = compose([f"data={name}"])
        assert not asks_for(hydra.utils.get_method(config.partition._target_), "labels")


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_sources_that_need_no_files_load_as_composed(name):
    source = hydra.utils.instantiate(OmegaConf.load(CONF / f"{name}.yaml"))
    examples = examples_from(source, seed=0, task=None)
    batch = examples.transform(examples.inputs[:4], dtype=torch.float32)
    assert batch.shape == (4, *examples.input_shape)


@pytest.mark.parametrize("name", NAMES)
def test_folders_follow_the_environment_variable(name, monkeypatch):
    monkeypatch.setenv("FLFAST_DATA", "elsewhere")
    config = OmegaConf.load(CONF / f"{name}.yaml")
    assert "root" not in config or config.root.startswith("elsewhere")
