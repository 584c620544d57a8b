"""An accountant knows how clients are drawn, whatever that is called."""

import logging

import pytest
from hydra import compose, initialize_config_dir

from flfast.channel.privacy.privacy import Privacy
from flfast.setup.protection import build_privacy
from flfast.state.capabilities import NEUTRAL
from flfast.train import CONF

CENTRAL = ("privacy=central", "rounds=1", "logger=none")
UNKNOWN = {
    "sampler": ("def uniform(num_clients, *, fraction, count, dropout, rng): ...", "uniform"),
    "devices": ("def ideal(clients, *, seconds): ...", "ideal"),
    "pace": ("def sync(*, deadline, keep_first, setting): ...", "sync"),
}


@pytest.fixture(scope="module")
def config_of():
    with initialize_config_dir(CONF, version_base="1.3"):
        yield lambda *words: compose("config", list(words))


@pytest.mark.parametrize("group", UNKNOWN)
def test_no_option_is_accounted_for_by_its_name(
    config_of, make_data, tmp_path, monkeypatch, group
):
    source, name = UNKNOWN[group]
    (tmp_path / f"own_{group}.py").write_text(f"{source}\n")
    monkeypatch.syspath_prepend(tmp_path)
    data = make_data([3] * 10)
    known = build_privacy(config_of(*CENTRAL), data)
    assert known.epsilon is not None
    own = config_of(*CENTRAL, f"{group}._target_=own_{group}.{name}")
    with pytest.raises(ValueError, match=f"{group}={name}"):
        build_privacy(own, data)


def test_the_warning_of_a_privacy_is_logged_if_the_option_is_the_object(
    config_of, make_data, tmp_path, monkeypatch, caplog
):
    (tmp_path / "own_privacy.py").write_text(
        "from flfast.channel.privacy.privacy import Privacy\n\n\n"
        "def made():\n    return Privacy('made', warning='only an example')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = config_of("rounds=1", "logger=none")
    config.privacy = {"_target_": "own_privacy.made"}
    with caplog.at_level(logging.WARNING):
        build_privacy(config, make_data([3] * 4))
    assert "only an example" in caplog.text


@pytest.mark.parametrize(
    "fields",
    [
        {"central_noise": lambda *_: None},
        {"expected_clients": 3.0},
        {"local_multiplier": 1.0},
        {"clip_norm": 1.0},
        {"wrap": lambda algorithm: algorithm},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_privacy_that_does_anything_needs_something(fields):
    """Whether or not it says whom it protects."""
    assert Privacy("own").capabilities == NEUTRAL
    silent, said = Privacy("own", **fields), Privacy("own", unit="client", **fields)
    assert silent.capabilities.needs == said.capabilities.needs != frozenset()
