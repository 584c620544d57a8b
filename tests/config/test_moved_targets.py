"""Folders and commands with dotted paths from before modules moved."""

import logging
import re

import pytest
from tables import timeless

import flfast
from flfast.output.results.runs import read_run
from flfast.output.results.settings import differing_keys
from flfast.state.moved import _moves

TINY = (
    *("data=synthetic", "data.num_examples=200", "data.num_test=50", "partition=iid", "seed=0"),
    *("partition.num_clients=3", "model=logistic", "local_epochs=1", "engine=eager"),
    *("trainer.devices=1", "checkpoint.every=1", "attack=sign_flip", "compression=topk"),
)


def as_before(text):
    """A text of a run's folder with the dotted paths of an earlier flfast."""
    olds = {new: old for old, new in _moves().items() if not old.endswith((".none", ".full"))}
    none = re.sub(r"flfast\.channel\.(\w+)\.\w+\.none\b", r"flfast.\1.none.none", text)
    return re.sub(
        r"flfast(\.\w+)+", lambda found: _replaced(found[0], olds), none.replace("\\/", "/")
    )


def _replaced(path, olds):
    for new, old in sorted(olds.items(), key=lambda pair: -len(pair[0])):
        if path == new or path.startswith(f"{new}."):
            return old + path.removeprefix(new)
    return path


@pytest.fixture
def folder(tmp_path):
    """A finished run of two rounds, as an earlier flfast left it."""
    flfast.run(*TINY, "rounds=2", folder=tmp_path / "run")
    changed = 0
    for path in [*(tmp_path / "run").rglob("*.json"), *(tmp_path / "run").rglob("*.yaml")]:
        before = path.read_text(encoding="utf-8")
        path.write_text(as_before(before), encoding="utf-8")
        changed += as_before(before) != before
    assert changed >= 3  # settings, result, checkpoints
    assert "flfast.attacks.sign_flip.sign_flip" in (
        tmp_path / "run" / ".hydra" / "config.yaml"
    ).read_text(encoding="utf-8")
    return tmp_path / "run"


@pytest.mark.slow
def test_a_run_of_before_is_finished_goes_on_and_can_be_read(folder, tmp_path):
    fresh = tmp_path / "fresh"
    flfast.run(*TINY, "rounds=3", folder=fresh)
    assert flfast.Run(folder).outcome == "finished"
    assert flfast.run(*TINY, "rounds=2", "resume=auto", folder=folder).outcome == "finished"
    assert flfast.Run(folder).evaluate()
    runs = [read_run(folder), read_run(fresh)]
    assert differing_keys(runs) == ["rounds"]
    flfast.run(*TINY, "rounds=3", "resume=auto", folder=folder)
    assert timeless(folder) == timeless(fresh)


def test_a_command_of_before_is_told_where_its_target_is_now(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run = flfast.run(
            *TINY[:-2],
            *("rounds=1", "attack._target_=flfast.attacks.none.none"),
            folder=tmp_path / "run",
        )
    assert "is flfast.channel.attacks.attack.none now" in caplog.text
    assert "flfast.channel.attacks.attack.none" in (
        run.folder / ".hydra" / "config.yaml"
    ).read_text(encoding="utf-8")
