"""What options need and break: known from their source, and from objects under any name."""

import sys
from itertools import combinations
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn

from flfast.algorithms.fedavg import fedavg
from flfast.config.combinations import check_composed, refused, said_by_option
from flfast.config.errors import ConfigError
from flfast.federation.paces.pace import Setting
from flfast.federation.sampling import Sampling
from flfast.setup.build_algorithm import build_selection
from flfast.setup.build_federation import build_sampler
from flfast.setup.protection import build_privacy
from flfast.setup.robustness import object_capabilities
from flfast.state.capabilities import MEANINGS, NEUTRAL, Capabilities, Choice, needing, refusals
from flfast.state.weights import read_weights
from flfast.train import CONF

GROUPS = (
    *("aggregation", "attack", "audit", "compression", "faults", "pace", "privacy", "sampler"),
    *("secure", "selection"),
)
OPTIONS = [
    (group, path.stem) for group in GROUPS for path in sorted((Path(CONF) / group).glob("*.yaml"))
]


@pytest.fixture(scope="module")
def base():
    with initialize_config_dir(CONF, version_base="1.3"):
        return compose("config", ["rounds=1", "logger=none"])


@pytest.fixture(scope="module")
def config_of(base, tmp_path_factory):
    """A config with some options, by group."""
    turns_file = tmp_path_factory.mktemp("turns") / "turns.csv"
    turns_file.write_text("round,client_id\n1,0\n")
    needed = {("sampler", "path"): str(turns_file), ("secure", "max_weight"): 9.0}

    def config_of(chosen):
        config = base.copy()
        turns = {"sampler": "cyclic"} if chosen.get("privacy") == "dp_ftrl" else {}
        for group, name in {**turns, **chosen}.items():
            config[group] = OmegaConf.load(Path(CONF) / group / f"{name}.yaml")
        for (group, key), value in needed.items():
            if key in config[group].keys():  # noqa: SIM118 - `in` of a config misses `???`
                config[group][key] = value
        return config

    return config_of


@pytest.fixture
def found(make_data):
    """The capabilities of the objects of a config."""
    data, model = make_data([3] * 10), nn.Linear(5, 3)
    algorithm, initial = fedavg(weighting="samples"), read_weights(model)

    def found(config):
        selected = build_selection(config, algorithm, data)
        privacy = build_privacy(config, data)
        sampling = Sampling(build_sampler(config), data, seed=0, rounds=1)
        pace = instantiate(config.pace)(setting=Setting(sampling, None))
        return {
            **object_capabilities(config, data, algorithm, selected, privacy, initial),
            "pace": pace.capabilities,
            "sampler": sampling.capabilities,
        }

    return found


@pytest.fixture
def renamed(tmp_path, monkeypatch):
    """Gives the option of a group another name, by a function that says nothing of it."""
    monkeypatch.syspath_prepend(tmp_path)

    def renamed(config, group):
        module, _, target = config[group]["_target_"].rpartition(".")
        own = f"own_{group}_{target}"
        (tmp_path / f"{own}.py").write_text(
            f"import functools\nfrom {module} import {target} as real\n\n"
            f"@functools.wraps(real)\ndef mine(*args, **kwargs):\n"
            f"    return real(*args, **kwargs)\n"
        )
        sys.modules.pop(own, None)
        config[group]["_target_"] = f"{own}.mine"

    return renamed


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_the_source_of_an_option_says_what_its_object_does(config_of, found, group, name):
    config = config_of({group: name})
    said = NEUTRAL
    for part in said_by_option(group, config[group]):
        said |= part.capabilities
    objects = found(config)[group]
    needs = said.needs - ({"messages"} if group == "selection" else set())
    assert objects.needs == needs
    assert objects.breaks.keys() == said.breaks.keys()


@pytest.mark.slow
def test_pairs_of_objects_under_other_names_are_refused_as_their_options_are(
    config_of, found, renamed
):
    """Among them `central` with `median`, and all that secure aggregation cannot sum."""
    said, does = {}, {}
    for group, name in OPTIONS:
        config = config_of({group: name})
        said[group, name] = list(said_by_option(group, config[group]))
        renamed(config, group)
        does[group, name] = [Choice(group, "", found(config)[group], "")]
        if group == "selection" and name != "none":  # of a wrapper, its source says that only
            does[group, name].append(Choice(group, "", needing("messages"), ""))
    refused_pairs = {
        pair
        for pair in combinations(OPTIONS, 2)
        if any(refusals([*said[pair[0]], *said[pair[1]]]))
    }
    assert len(refused_pairs) > 60
    assert (("aggregation", "median"), ("privacy", "central")) in refused_pairs
    for pair in combinations(OPTIONS, 2):
        assert any(refusals([*does[pair[0]], *does[pair[1]]])) == (pair in refused_pairs), pair


@pytest.mark.slow
def test_a_run_is_refused_whatever_its_options_are_called(flfast_run, capfd, config_of, renamed):
    config = config_of({"privacy": "central"})
    renamed(config, "privacy")
    target = f"privacy._target_={config.privacy._target_}"
    for words, message in {
        ("aggregation=median",): "aggregation=median with privacy=mine: it reads single uploads",
        ("pace=buffered",): "privacy=central with pace=buffered: ",  # its accountant comes first
        ("algorithm=fedfomo",): "algorithm=fedfomo with privacy=mine: the server needs",
    }.items():
        with pytest.raises(SystemExit):
            flfast_run("experiment=quick", "callbacks=none", "privacy=central", target, *words)
        assert message in capfd.readouterr().err


def test_a_number_that_breaks_something_is_named(config_of, found, renamed):
    config = config_of({"privacy": "central"})
    config.pace.keep_first = 2
    renamed(config, "privacy")
    assert refused(OmegaConf.to_container(config)) is None
    with pytest.raises(ConfigError, match=r"pace.keep_first=2 with privacy=mine: .*first=null"):
        check_composed(config, found(config))


def test_every_property_is_needed_by_one_and_broken_by_another():
    """A word that nobody needs, or that nobody breaks, could refuse nothing."""
    files = Path(CONF).parent.joinpath("flfast").rglob("*.py")
    text = "".join(path.read_text() for path in files)
    beside_its_meaning = {name: text.count(f'"{name}"') - 1 for name in MEANINGS}
    assert [name for name, times in beside_its_meaning.items() if times < 2] == []


def test_choices_of_a_group_do_not_refuse_each_other():
    both = Capabilities(frozenset({"sums"}), {"sums": "it reads"})
    assert list(refusals([Choice("a", "a=1", both, "a=0"), Choice("a", "a.b=2", both, "0")])) == []
    assert list(refusals([Choice("a", "a=1", NEUTRAL, ""), Choice("b", "b=2", both, "")])) == []
