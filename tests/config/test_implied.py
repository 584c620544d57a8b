"""What somebody types wins over defaults, and over an experiment, that exclude it."""

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from sampling import others_slow

from flfast.config.check import check
from flfast.config.composition import CONF, compose, without_hydra
from flfast.config.implied import _EITHER, implied
from flfast.setup.build_data import build_data

GROUPS = sorted(path.name for path in Path(CONF).iterdir() if path.is_dir())
EXPERIMENTS = sorted(path.stem for path in (Path(CONF) / "experiment").glob("*.yaml"))
PRIVATE = sorted(path.stem for path in (Path(CONF) / "privacy").glob("*.yaml"))
PRIVATE.remove("none")


def composed(*words):
    return without_hydra(compose([*words, *implied(words)]))


@pytest.mark.parametrize("option", others_slow(PRIVATE, ["central"]))
@pytest.mark.parametrize("typed", ["privacy.noise_multiplier=0.5", "privacy.epsilon=3"])
def test_noise_and_epsilon_give_way_to_each_other(option, typed):
    config = composed(f"privacy={option}", typed)
    given = [config.privacy[name] for name in ("noise_multiplier", "epsilon")]
    assert sum(value is not None for value in given) == 1
    key, value = typed.split("=")
    assert OmegaConf.select(config, key) == float(value)


def test_of_an_experiment_too():
    config = composed("experiment=pfl_research_dp", "privacy.noise_multiplier=2")
    assert (config.privacy.noise_multiplier, config.privacy.epsilon) == (2, None)


@pytest.mark.parametrize("pair", _EITHER)
def test_nothing_follows_from_both_or_from_null(pair):
    first, second = pair
    chosen = ["privacy=central"]
    assert implied([*chosen, f"{first}=1", f"{second}=2"]) == []
    assert implied([*chosen, f"{first}=null"]) == []


def test_an_option_without_the_other_key_is_left_alone():
    assert implied(["privacy=mine", "privacy.noise_multiplier=1"]) == []


def replaced(experiment):
    """Groups whose options an experiment changes, with one other option each."""
    recipe = OmegaConf.load(Path(CONF, "experiment", f"{experiment}.yaml"))
    for group in GROUPS:
        if isinstance(recipe.get(group), dict) or OmegaConf.is_config(recipe.get(group)):
            yield group


CASES = [(name, group) for name in EXPERIMENTS for group in replaced(name) if group != "hydra"]


@pytest.mark.parametrize(("experiment", "group"), others_slow(CASES, [("diloco", "algorithm")]))
def test_an_option_that_replaces_that_of_an_experiment_has_its_own_keys_only(experiment, group):
    options = sorted(path.stem for path in Path(CONF, group).glob("*.yaml"))
    for option in options[:: max(len(options) // 3, 1)]:
        words = [f"experiment={experiment}", f"{group}={option}"]
        alone = set(without_hydra(compose(words[1:]))[group] or ())
        assert set(composed(*words)[group] or ()) <= alone, option


def test_a_key_that_is_typed_is_kept_for_the_message():
    assert implied(["experiment=diloco", "partition=natural", "partition.num_clients=3"]) == []


def test_the_cases_of_the_command_line_are_allowed():
    check(composed("logger=none", "experiment=diloco", "partition=natural"))
    check(composed("logger=none", "privacy=central", "privacy.noise_multiplier=0"))


WITH_OWNER = [
    path.stem
    for path in sorted((Path(CONF) / "data").glob("*.yaml"))
    if "owner" in OmegaConf.load(path)
]


@pytest.mark.parametrize("option", WITH_OWNER)
def test_who_names_the_column_of_clients_gets_them(option):
    words = [f"data={option}", "data.owner=site"]
    assert composed(*words).partition._target_.endswith(".natural")
    assert composed(*words, "partition=iid").partition._target_.endswith(".iid")


def test_a_partition_that_leaves_named_clients_out_is_said(tmp_path, caplog):
    path = tmp_path / "rows.csv"
    path.write_text("site,x,target\n" + "".join(f"s{i % 3},{i},{i % 2}\n" for i in range(150)))
    words = ["data=table", f"data.path={path}", "data.owner=site"]
    assert build_data(composed(*words)).num_clients == 3
    assert not caplog.messages
    assert build_data(composed(*words, "partition=iid")).num_clients == 10
    assert caplog.messages[0].startswith("data.owner=site: partition=iid makes other clients")


@pytest.mark.parametrize(
    "words",
    [
        ["local_steps=4", "rounds=1", "--cfg", "job"],
        pytest.param(["--cfg", "job", "local_steps=4"], marks=pytest.mark.slow),
        pytest.param(["--cfg", "job", "rounds=1", "local_steps=4"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_flags_may_stand_anywhere(words):
    """Words that follow are put beside the typed ones: argparse wants all in one row."""
    command = [sys.executable, "-m", "flfast.train", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "local_epochs: null" in done.stdout
