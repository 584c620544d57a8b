"""What `python -m flfast.describe` says is complete and right, and needs no torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from flfast.config.composition import CONF, compose, without_hydra
from flfast.config.errors import ConfigError
from flfast.describe import describe, entries, main, narrowed

OPTION = """\
# family: mine
_target_: described_option.pulled
_partial_: true
pull: 1e-3  # strength, > 0
rest: ${rounds}
"""
SOURCE = '''"""Pulled: a model is pulled."""

from flfast.state.options import Positive


def pulled(*, pull: Positive, rest: int) -> None:
    """Nothing."""
'''


@pytest.fixture(scope="module")
def document():
    return describe()


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the command prints with a folder of the user's, in a process that shows its imports."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "conf" / "algorithm").mkdir(parents=True)
    (folder / "conf" / "algorithm" / "pulled.yaml").write_text(OPTION, encoding="utf-8")
    (folder / "described_option.py").write_text(SOURCE, encoding="utf-8")
    program = (
        "import sys; sys.path.insert(0, ''); sys.argv[1:] = ['--config-dir', 'conf'];"
        "import flfast.describe as d; d.main(); sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr or "it imports torch"
    return json.loads(done.stdout)


def of(document, option, key):
    (found,) = [
        schema for where, name, schema in entries(document) if (where, name) == (option, key)
    ]
    return found


def test_keys_have_type_range_default_and_meaning(document):
    mu = of(document, "algorithm=fedprox", "algorithm.mu")
    assert mu["anyOf"] == [{"type": "number", "minimum": 0, "maximum": 1e18}]
    assert mu["default"] == 0.1
    assert mu["description"].startswith("strength of the proximal term, >= 0;")
    every = of(document, "", "checkpoint.every")
    assert {one["type"] for one in every["anyOf"]} == {"integer", "string"}
    name = of(document, "data=copies", "data.source.name")
    assert name["anyOf"] == [{"type": "string", "enum": ["MNIST", "FashionMNIST", "KMNIST"]}]
    assert "default" not in of(document, "stop=target", "stop.value"), "it has to be set"


def test_keys_say_what_they_influence_and_whether_phases_change_them(document):
    assert of(document, "", "threads")["influence"] == "speed"
    changing = ("optimizer.lr", "optimizer.momentum")
    assert [of(document, "optimizer=sgd", key)["phase"] for key in changing] == [True, False]
    assert of(document, "trainer=default", "trainer.precision")["phase"]


def test_options_say_what_they_are_need_and_break(document):
    options = document["$defs"]
    assert all(one["description"] for named in options.values() for one in named.values())
    assert document["properties"]["algorithm"]["option"] == "fedavg"
    assert options["aggregation"]["median"]["breaks"] == {"sums": "it reads single uploads"}
    assert options["privacy"]["central"]["needs"]["sums"].startswith("a server that uses only")
    assert "single clients" in options["sampler"]["poisson"]["breaks"]
    assert "whole cohorts" in of(document, "pace=sync", "pace.keep_first")["breaks"]


def test_types_are_known_but_for_a_few_keys(document):
    unknown = [
        key
        for option, key, schema in entries(document)
        if not schema.keys() & {"anyOf", "properties"}
        and not option.startswith(("experiment=", "hparams_search=", "hydra"))
        and not key.endswith("._target_")
    ]
    groups = {key.split(".")[0] for key in unknown}
    assert groups == {
        *("trainer", "logger", "schedule", "callbacks", "lr_schedule", "algorithm", "data")
    }
    assert [key for key in unknown if key.startswith("algorithm")] == [
        "algorithm.server_optimizer.lr",  # of torch.optim.Adam
        "algorithm.server_optimizer.lr",  # of torch.optim.SGD
    ]


def test_words_narrow_it(document):
    assert [*narrowed(document, "privacy")] == [
        f"privacy={name}" for name in ("central", "dp_ftrl", "dp_sgd", "local", "none")
    ]
    assert [*narrowed(document, "partition=iid")] == ["partition=iid"]
    assert [*narrowed(document, "rounds")] == ["config"], "experiments set it only"
    alphas = narrowed(document, "partition.alpha")
    assert alphas["partition=dirichlet"]["partition.alpha"]["default"] == 0.5
    assert len(alphas) == 4, "three partitions, and an experiment"
    with pytest.raises(ConfigError, match=r"did you mean algorithm=fedprox\?"):
        narrowed(document, "algorithm=fedprxo")


def test_a_wrong_folder_ends_with_code_2_and_a_message(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["flfast.describe", "--config-dir", "nowhere"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "nowhere: there is no such folder" in capsys.readouterr().err


@pytest.mark.slow
def test_it_has_options_of_the_user_and_does_not_import_torch(printed):
    option = printed["$defs"]["algorithm"]["pulled"]
    assert option["description"] == "Pulled: a model is pulled."
    assert option["properties"]["pull"]["default"] == 1e-3
    assert option["properties"]["pull"]["anyOf"][0]["exclusiveMinimum"] == 0
    assert {"$ref": "#/$defs/algorithm/pulled"} in printed["properties"]["algorithm"]["anyOf"]


@pytest.mark.slow
def test_it_is_a_schema_of_configs_and_experiments(printed):
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(printed)
    validator = Draft202012Validator(printed)
    config = OmegaConf.to_container(without_hydra(compose([])), resolve=False)
    assert [*validator.iter_errors(config)] == []
    for path in sorted((Path(CONF) / "experiment").glob("*.yaml")):
        assert [*validator.iter_errors(yaml.safe_load(path.read_text()))] == [], path
    for wrong in ({"rounds": 0}, {"roundz": 3}, {"split": {"val": 1.0}}, {"bn": "frosen"}):
        assert len([*validator.iter_errors({**config, **wrong})]) == 1, wrong
