"""The folder of a run may be a stranger's: no code of it runs, whatever its config names."""

import os
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from composing import composed
from omegaconf import OmegaConf
from sampling import rotating

import flfast
from flfast.config.check import check
from flfast.config.composition import CONF, compose, without_hydra
from flfast.config.errors import ConfigError
from flfast.config.own import NOTHING
from flfast.config.saved_config import read_config
from flfast.config.saved_run import find_run
from flfast.config.trust import own_targets
from flfast.state.plain_yaml import MOST_BYTES

GROUPS = sorted(path.name for path in Path(CONF).iterdir() if path.is_dir())
NOT_OF_RUNS = {"hydra", "logger", "callbacks", "experiment", "hparams_search"}


@pytest.fixture(scope="module")
def plain():
    """The default config of a run, as `.hydra/config.yaml` has it."""
    composed = without_hydra(compose(["partition.num_clients=5"]))
    return OmegaConf.to_container(composed, resolve=False)


@pytest.fixture
def folder(tmp_path, plain, monkeypatch):
    """(change) -> the folder of a run whose config `change` has changed."""
    (tmp_path / "canary.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\ndef sing(*_, **__): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "model.pt").touch()

    def make(change):
        config = deepcopy(plain)
        text = change(config) if callable(change) else change
        text = yaml.safe_dump(config) if text is None else text
        (tmp_path / ".hydra" / "config.yaml").write_text(text, encoding="utf-8")
        return tmp_path

    return make


def opened(folder, *allow):
    options = {"run": str(folder), "allow": ",".join(allow)}
    return find_run(options, [], NOTHING)


def put(key, value):
    """A change of a config: a value at a dotted key."""

    def change(config):
        *parents, last = key.split(".")
        for name in parents:
            config = config.setdefault(name, {})
        config[last] = value

    return change


SING = {"_target_": "canary.sing"}
TARGETS = {
    "a function": put("model", SING),
    "a function of Python": put("model", {"_target_": "os.system", "command": "touch ran"}),
    "code": put("data", {"_target_": "builtins.exec", "_args_": ["import canary"]}),
    "a pickle": put("data", {"_target_": "torch.load", "f": "x", "weights_only": False}),
    "another pickle": put("model", {"_target_": "numpy.load", "file": "x", "allow_pickle": True}),
    "a module": put("data", {"_target_": "importlib.import_module", "name": "canary"}),
    "Hydra's own": put("model", {"_target_": "hydra.utils.get_method", "path": "canary.sing"}),
    "Hydra in Hydra": put("model", {"_target_": "hydra.utils.instantiate", "_args_": [SING]}),
    "partial": put("optimizer", {**SING, "_partial_": True, "lr": 0.1}),
    "nested": put("model.hidden", SING),
    "in a list": put("model.hidden", [16, [SING]]),
    "not recursive": put(
        "data", {"_target_": "functools.partial", "_recursive_": False, "a": SING}
    ),
    "an argument of the Trainer": put("trainer.plugins", [SING]),
    "where none is built": put("loader.num_workers", SING),
    "hidden": lambda c: (put("task", "canary.sing")(c), put("model._target_", "${task}")(c))[:0],
    "in two parts": lambda c: (
        put("task", "canary")(c),
        put("model._target_", "${task}.sing")(c),
    )[:0],
    "as an object of a program": put("optimizer", {**SING, "_own_": "0123", "lr": 0.1}),
    "below an object": put("optimizer", {"_own_": "0123", "lr": SING}),
    "of flfast, but no option": put("model", {"_target_": "flfast.state.weights.read_state_dict"}),
    "an option of another group": put(
        "model", {"_target_": own_targets()["logger"] and min(own_targets()["logger"])}
    ),
    "no text": put("model._target_", ["canary.sing"]),
    "an attribute of an option": put("model._target_", "flfast.models.mlp.mlp.__globals__"),
    "like an option": put("model._target_", "flfast.models.mlp.nn.Linear"),
    "in a phase": put(
        "schedule.phases", [{"from": 2, "overrides": ["+trainer.plugins={_target_: canary.sing}"]}]
    ),
}


@pytest.mark.parametrize("case", TARGETS)
@pytest.mark.parametrize("way", ["command", "python"])
def test_a_target_of_a_stranger_is_refused_by_name_before_it_is_imported(folder, case, way):
    place = folder(lambda config: (TARGETS[case](config), None)[1])
    before = {*sys.modules}
    if way == "command" or case == "in a phase":
        with pytest.raises(ConfigError, match=r"_target_="):
            opened(place)
    else:
        with pytest.raises(ConfigError, match=r"_target_=.*allowed: allow="):
            _ = flfast.Run(place).model
    assert "canary" not in sys.modules
    assert not {name for name in {*sys.modules} - before if name.partition(".")[0] != "flfast"}
    assert not (place / "ran").exists()


def test_what_the_user_names_is_built(folder):
    place = folder(put("model", {"_target_": "canary.sing"}))
    for name in ("canary", "canary.sing"):
        assert opened(place, name).config.model["_target_"] == "canary.sing"
    for name in ("can", "canary.sin", "canary.sing.er", "sing", "os"):
        with pytest.raises(ConfigError, match=r"allow=canary\.sing, if you trust"):
            opened(place, name)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("transformers", {"options": {"trust_remote_code": True}}),
        ("transformers", {"pretrained_path": "/tmp"}),
        ("timm", {"options": {"checkpoint_path": "x.pt"}}),
        ("timm", {"download": True}),
    ],
)
def test_arguments_that_other_libraries_may_run_are_refused(folder, option, words):
    target = OmegaConf.load(Path(CONF, "model", f"{option}.yaml"))["_target_"]
    node = {"_target_": target, "name": "x", **words}
    with pytest.raises(ConfigError, match=f"model.{next(iter(words))}=.*another library"):
        read_config(folder(put("model", node)))
    read_config(folder(put("model", node)), [node["_target_"]])


INTERPOLATIONS = {
    "a variable": "${oc.env:HOME}",
    "its default": "${oc.env:FLFAST_DATA,other}",
    "a folder": "${new_folder:made}",
    "a node": "${oc.create:{_target_:canary.sing}}",
    "a decoder": "${oc.decode:x}",
    "of Hydra": "${hydra:runtime.cwd}",
    "a nested name": "${oc.env:${task}}",
    "a built name": "${${task}:HOME}",
    "escaped": "\\${oc.env:HOME}",
    "relative": "${.x}",
    "in text": "a ${oc.env:HOME} b",
    "put together": "$${task}{oc.env:HOME}",
    "of nothing": "${nothing}",
    "of a node of several": "${model}",
    "of itself": "${optimized_metric}",
    "cut off": "${oc.env:HOME",
    "many": "${seed}" * 21,
    "long": "${task}" * 20,
}


@pytest.mark.parametrize("case", INTERPOLATIONS)
def test_only_interpolations_of_flfasts_options_are_looked_up(folder, case, monkeypatch):
    def change(config):
        config["optimized_metric"] = INTERPOLATIONS[case]
        config["task"] = "HOME" if case != "long" else "x" * 100

    place = folder(change)
    monkeypatch.chdir(place)
    with pytest.raises(ConfigError, match=r"config\.yaml: optimized_metric="):
        read_config(place)
    assert not (place / "made").exists()
    assert not (place / "ran").exists()


def test_a_text_that_becomes_an_interpolation_is_refused(folder):
    def change(config):
        config["task"] = "$"
        config["optimized_metric"] = "${task}{oc.env:HOME}"

    with pytest.raises(ConfigError, match="optimized_metric="):
        read_config(folder(change))
    phases = [{"from": 2, "overrides": ["batch_size=$\\{oc.env:HOME\\}"]}]
    with pytest.raises(ConfigError, match=r"schedule\.phases: batch_size"):
        opened(folder(put("schedule.phases", phases)))


def test_a_resolver_that_the_user_names_is_run(folder, monkeypatch):
    monkeypatch.setenv("METRIC", "val/loss")
    place = folder(put("optimized_metric", "${oc.env:METRIC}"))
    with pytest.raises(ConfigError, match=r"or allow=oc\.env, if you trust the folder"):
        read_config(place)
    assert read_config(place, ["oc.env"]).optimized_metric == "val/loss"


def bomb(text):
    return text + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )


FILES = {
    "anchors": bomb("a: &a [1, 1]\n"),
    "an anchor of itself": "a: &a [*a]\n",
    "deep": "a: " + "[" * 100_000,
    "deep keys": "? " * 100_000,
    "long": "a: " + "x" * MOST_BYTES,
    "an object": "!!python/object/apply:os.system [touch ran]\n",
    "a tag": "a: !mine 1\n",
    "a date": "a: 2020-01-01\nb: !!binary aGk=\n",
    "a list": "- 1\n",
    "no text": b"\xff\xfe\x00",
    "nothing": "",
    "two documents": "a: 1\n---\nb: 2\n",
    "a key of several": "? [1, 2]\n: 3\n",
    "no key": "a: 1\n? \n: [{_target_: canary.sing}]\n",
    "control characters": 'a: "\\e[2J"\nb: ${oc.env:\x1b[2J}',
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_no_run_wrote_is_one_message(folder, case, monkeypatch):
    place = folder("")
    content = FILES[case]
    path = place / ".hydra" / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.chdir(place)
    with pytest.raises(ConfigError) as error:
        opened(place)
    assert len(str(error.value)) < 5000
    assert "\x1b" not in str(error.value)
    assert not (place / "ran").exists()


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")]
)
def test_what_is_no_file_is_refused_without_waiting(folder, make):
    place = folder("")
    path = place / ".hydra" / "config.yaml"
    path.unlink()
    make(path)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        opened(place)


@pytest.mark.parametrize(
    ("group", "first"),
    rotating([name for name in GROUPS if name not in NOT_OF_RUNS], range(6), every=18),
)
def test_every_option_of_flfast_may_be_opened_as_it_was_checked(group, first, tmp_path):
    (tmp_path / ".hydra").mkdir()
    for path in sorted((Path(CONF) / group).glob("*.yaml"))[first::6]:
        raw = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        if path.stem in {"custom", "lightning"}:  # which name what is a user's
            continue
        config = composed(f"{group}={path.stem}")
        OmegaConf.set_struct(config, value=False)
        for key in (key for key, value in raw.items() if value == "???"):
            config[group][key] = "x"
        (tmp_path / ".hydra" / "config.yaml").write_text(OmegaConf.to_yaml(config))
        config.logger, config.callbacks, config.resume = None, None, None
        for data in (config.data, config.data.get("source", {})):
            if "download" in data:
                data.download = False
        found = read_config(tmp_path)
        assert found == OmegaConf.to_container(config, resolve=True), path.stem


def test_the_default_config_is_checked_after_it_was_read(folder):
    check(read_config(folder(lambda _: None)))


OUTWARD = {"cache": "/elsewhere", "cache_dir": "/elsewhere", "download": True}


@pytest.mark.parametrize(
    "option",
    rotating(
        sorted({path.stem for path in Path(CONF, "data").iterdir()} - {"lightning"}), every=5
    ),
)
def test_data_of_a_saved_run_neither_write_nor_download(option, folder):
    overrides = [] if option == "leaf" else [f"data={option}"]
    data = OmegaConf.to_container(without_hydra(compose(overrides)), resolve=False)["data"]

    def opened_up(node):
        for value in node.values():
            if isinstance(value, dict):
                opened_up(value)
        node.update({name: OUTWARD[name] for name in OUTWARD if name in node})

    opened_up(data)
    found = read_config(folder(put("data", data))).data
    text = OmegaConf.to_yaml(found)
    assert "/elsewhere" not in text and "download: true" not in text


def test_the_user_may_let_data_of_a_saved_run_write_and_download(folder, caplog):
    target = "flfast.datamodules.sources.image_folder.ImageFolder"
    data = OmegaConf.to_container(without_hydra(compose(["data=image_folder"])), resolve=False)
    run = folder(put("data", data["data"] | {"cache": "/elsewhere"}))
    assert read_config(run).data.cache is None
    [line] = caplog.messages
    assert line.startswith("data.cache=/elsewhere: of a saved run, it is only used if the command")
    assert read_config(run, [target]).data.cache == "/elsewhere"
    found = find_run({"run": str(run)}, ["data.cache=/mine"], NOTHING)
    assert found.config.data.cache == "/mine"
