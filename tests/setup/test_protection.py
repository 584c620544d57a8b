"""What a privacy needs is read from the objects of a run, whatever its options are called."""

import sys

import pytest
from hydra import compose, initialize_config_dir
from sampling import rotating

from flfast.config.channel_rules import OPTION_NEEDS
from flfast.config.rule import choice
from flfast.setup.protection import build_privacy
from flfast.train import CONF

SMALL = ("experiment=quick", "callbacks=none", "rounds=1")
# Settings that break what each option of privacy needs.
BROKEN = {
    "central": [
        ("aggregation=median",),
        ("aggregation=geometric_median",),
        ("pace=buffered",),
        ("pace.keep_first=2",),
        ("selection=oort",),
        ("selection=power_of_choice",),
        ("upload_clip_norm=1",),
    ],
    "dp_ftrl": [("aggregation=krum",), ("pace=async",)],
    "local": [("upload_clip_norm=1",)],
    "dp_sgd": [
        ("last_batch=pad",),
        ("trainer.accumulate_grad_batches=2",),
        ("schedule.phases=[{from: 2, overrides: ['batch_size=5']}]",),
    ],
}
CASES = [(privacy, words) for privacy, broken in BROKEN.items() for words in broken]


@pytest.fixture
def renamed(tmp_path, monkeypatch):
    """Words that give the chosen option of a group another name."""
    monkeypatch.syspath_prepend(tmp_path)

    def renamed(word, name):
        group, option = word.split("=")
        with initialize_config_dir(CONF, version_base="1.3"):
            target = compose("config", [word])[group]["_target_"]
        (module, _, target), own = target.rpartition("."), f"own_{group}_{option}"
        (tmp_path / f"{own}.py").write_text(f"from {module} import {target} as {name}\n")
        sys.modules.pop(own, None)
        return word, f"{group}._target_={own}.{name}"

    return renamed


@pytest.mark.parametrize("case", rotating(CASES, every=2))
def test_another_name_of_a_privacy_escapes_no_rule(flfast_run, renamed, capfd, case):
    privacy, words = case
    option = f"privacy={privacy}"
    for chosen in ((option,), renamed(option, "mine")):
        with pytest.raises(SystemExit):
            flfast_run(*SMALL, "sampler=cyclic", *chosen, *words)
        message = capfd.readouterr().err.partition("\n")[2]  # behind the line of overrides
        # Its accountant says its own name.
        assert "privacy=mine" in message or option in message


@pytest.mark.parametrize(
    ("word", "name", "allowed"),
    [("aggregation=median", "mean", "aggregation=mean"), ("pace=async", "sync", "pace=sync")],
)
def test_nor_does_the_name_of_another_option(flfast_run, renamed, capfd, word, name, allowed):
    with pytest.raises(SystemExit):
        flfast_run(*SMALL, "privacy=central", *renamed(word, name))
    assert f"its noise is for the sum of a whole cohort; allowed: {allowed}" in (
        capfd.readouterr().err
    )


@pytest.mark.parametrize("name", ["none", *OPTION_NEEDS])
def test_the_needs_of_options_are_known_before_their_objects(name, make_data):
    with initialize_config_dir(CONF, version_base="1.3"):
        config = compose("config", [f"privacy={name}", "sampler=cyclic"])
    privacy = build_privacy(config, make_data([3] * 10))
    assert privacy.needs == {*OPTION_NEEDS.get(choice(config.privacy), ())}
