"""A run that was saved before a key existed opens, and goes on, with the key's default."""

from copy import deepcopy

import pytest
import yaml
from omegaconf import OmegaConf

from flfast.config.added_keys import lacks_keys
from flfast.config.composition import CONF, compose, without_hydra
from flfast.config.errors import ConfigError
from flfast.config.resume_check import check_folder, finished_before, recorded_config
from flfast.config.saved_run import find_run
from flfast.output.results.outcome import Result, write_result
from flfast.output.results.runs import read_run

WORDS = ("partition.num_clients=5", "algorithm=fedprox", "model=cnn", "data=synthetic")
GIVEN = compose([*WORDS])
CHOICES = {**GIVEN.hydra.runtime.choices, "privacy": "../x"}


def keys(node, parents=()):
    for key, value in node.items():
        yield (*parents, key)
        if isinstance(value, dict):
            yield from keys(value, (*parents, key))


PLAIN = OmegaConf.to_container(without_hydra(GIVEN), resolve=False)
KEYS = [path for path in keys(PLAIN) if path[0] not in {"callbacks", "logger", "resume"}]
TARGETS = [path for path in KEYS if path[-1] == "_target_"]
OF_PARTITION = [path for path in KEYS if path[0] == "partition" and path not in TARGETS]
OTHERS = [path for path in KEYS if path not in {*TARGETS, *OF_PARTITION}]
TOGETHER = [OTHERS[first::8] for first in range(8)]
"""Saved runs that lack several keys, each key in one of them."""


def without(paths, config):
    """A config without the keys; those whose parents are gone are, too."""
    config = deepcopy(config)
    for path in paths:
        node = config
        for key in path[:-1]:
            node = node.get(key, {})
        node.pop(path[-1], None)
    return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "overrides.yaml").write_text("[]\n")
    node = {"hydra": {"runtime": {"choices": CHOICES}}}
    (folder / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump(node))
    (folder / "model.pt").touch()
    return folder


def opened(folder, config):
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    return OmegaConf.to_container(find_run({"run": str(folder)}, [], conf=CONF).config)


@pytest.fixture(scope="module")
def now():
    command = {"resume": "auto", "callbacks": None, "logger": None}
    return OmegaConf.merge(OmegaConf.create(PLAIN), command)


@pytest.mark.parametrize("paths", TOGETHER, ids=lambda paths: ".".join(paths[0]))
def test_a_key_that_a_saved_run_lacks_has_its_default(folder, now, paths):
    """`flfast.evaluate` and `flfast.export` open the run, `resume=auto` takes it as the same."""
    write_result(folder, Result("finished", without(paths, recorded_config(now, folder))))
    expected = OmegaConf.create(PLAIN | {"logger": None, "callbacks": None, "resume": None})
    expected.trainer.profiler = None
    assert opened(folder, without(paths, PLAIN)) == OmegaConf.to_container(expected, resolve=True)
    read_run(folder)
    check_folder(now, folder)
    assert finished_before(now, folder) is not None


@pytest.mark.parametrize("path", OF_PARTITION, ids=".".join)
def test_a_key_of_the_partition_that_a_saved_run_lacks_has_its_default(folder, now, path):
    """Which is not what the command chose."""
    write_result(folder, Result("finished", without([path], recorded_config(now, folder))))
    expected = OmegaConf.create(PLAIN | {"logger": None, "callbacks": None, "resume": None})
    expected.trainer.profiler = None
    if path[-1] in {"partition", "num_clients"}:
        expected.partition.num_clients = 100
    found = opened(folder, without([path], PLAIN))
    assert not lacks_keys(found, OmegaConf.to_container(expected, resolve=True))
    read_run(folder)


@pytest.mark.parametrize("path", TARGETS, ids=".".join)
def test_what_is_built_has_no_default(folder, path):
    with pytest.raises(ConfigError, match=r"config.yaml: [a-z_]+\._target_ is missing$"):
        opened(folder, without([path], PLAIN))


def test_a_value_other_than_the_default_of_an_added_key_is_another_experiment(folder, now):
    write_result(
        folder, Result("stopped", without([("last_batch",)], recorded_config(now, folder)))
    )
    (folder / "metrics.csv").write_text("round\n0\n")
    other = OmegaConf.merge(now, {"last_batch": "drop"})
    with pytest.raises(ConfigError, match=r'last_batch: "keep" -> "drop"'):
        check_folder(other, folder)
    check_folder(now, folder)
    (folder / "metrics.csv").unlink()
