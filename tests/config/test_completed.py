"""Runs of an earlier version, whose options had fewer keys, are read with today's defaults."""

from copy import deepcopy

import pytest
from composing import FILES, composed
from omegaconf import OmegaConf

from flfast.config.completed import completed
from flfast.evaluate import evaluate


def plain(option):
    return OmegaConf.to_container(composed(option), resolve=False)


@pytest.mark.parametrize("option", ["data=table", "algorithm=fedprox", "model=cnn", "pace=async"])
def test_each_key_that_is_missing_gets_its_default(option):
    whole, group = plain(option), option.partition("=")[0]
    assert completed(whole) == whole
    for key, value in whole[group].items():
        config = deepcopy(whole)
        del config[group][key]
        # An interpolation may mean something else in another config.
        wanted = config if key == "_target_" or "${" in str(value) else whole
        assert completed(config) == wanted
    config = deepcopy(whole)
    del config["eval_examples"]
    assert completed(config) == whole


def test_what_flfast_has_no_option_for_stays_as_it_is():
    whole = plain("data=table")
    whole["model"] = {"_target_": "my.net", "width": 3}
    assert completed(whole) == whole


def test_a_run_without_later_keys_is_evaluated(flfast_run):
    folder = flfast_run("rounds=1", "model=logistic", *FILES)
    before = evaluate([f"run={folder}"])
    path = folder / ".hydra" / "config.yaml"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    later = ("eval_examples:", "  test_fraction:", "  nesterov:")
    path.write_text("".join(line for line in lines if not line.startswith(later)))
    assert evaluate([f"run={folder}"]) == before
