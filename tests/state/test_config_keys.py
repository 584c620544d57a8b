"""The one table of keys: complete, and what each reader makes of it."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from flfast.config.composition import CONF, compose
from flfast.state.config_keys import KEYS, flat, influence, keys_with

OF_HYDRA = {"hydra", "experiment"}  # groups without a key of their own in the config


OF_THE_PAST = {"trainer.num_nodes"}  # in configs of saved runs


@pytest.fixture(scope="module")
def config():
    return OmegaConf.to_container(compose([]), resolve=False)


def test_every_key_of_the_config_is_in_the_table_and_no_other(config):
    tops = {name.partition(".")[0] for name in KEYS}
    assert tops - OF_HYDRA == {*config} - {"hydra"}
    for name in {*KEYS} - OF_THE_PAST:
        group, _, key = name.partition(".")
        options = Path(CONF, group).glob("*.yaml")
        known = bool(key) and key in config[group]
        assert not key or known or any(f"{key}:" in path.read_text() for path in options), name


@pytest.mark.parametrize("key", KEYS)
def test_a_phase_changes_neither_output_nor_what_a_command_does(key):
    if "phase" in KEYS[key].uses:
        assert influence(key) in ("results", "speed")


def test_nothing_below_a_key_without_results_has_results():
    """So that `fixed_settings` may ask each value of a config for its own influence."""
    for key in KEYS:
        above = [key.rpartition(".")[0]] if "." in key else []
        assert all(influence(name) == "results" for name in above) or influence(key) != "results"


def test_settings_are_named_by_dotted_keys():
    config = {"a": {"b": 1, "c": {}, "d": {"e": [{"f": 2}]}}, "g": None}
    assert dict(flat(config)) == {"a.b": 1, "a.c": {}, "a.d.e": [{"f": 2}], "g": None}


def test_a_key_is_what_its_longest_entry_says():
    assert influence("trainer.devices.first") == "speed"
    assert influence("trainer.limit_train_batches") == "results"
    assert influence("callbacks.curves.width") == "output"
    assert influence("something.new") == "results"


def test_groups_stand_for_their_keys():
    assert {"strategy", "trainer", "optimizer.lr", "batch_size"} <= {*keys_with("phase")}
    assert {"resume", "overwrite"} == {key for key in KEYS if influence(key) == "command"}
