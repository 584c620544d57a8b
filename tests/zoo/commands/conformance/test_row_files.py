"""The rows that are shipped: valid, composed, and their closed forms by another way."""

from pathlib import Path

import pytest
import yaml
from closed_forms import CLOSED
from sampling import others_slow

import flfast
from flfast.config.errors import ConfigError
from flfast.zoo.commands.conformance.row_files import LEVELS, ROWS, read_row, read_rows
from flfast.zoo.commands.conformance.row_jobs import _ALWAYS, _OF_EXAMPLES, _runs

NAMES = sorted(path.stem for path in ROWS.glob("*.yaml"))
FAST = ["closed_form_fedprox", "ifca_digits_rotated", "pfllib_mnist"]
TINY = yaml.safe_load((ROWS / "closed_form_fedavg.yaml").read_text())


def test_every_row_is_of_a_level_whose_rows_fit_into_its_time():
    rows = {level: read_rows(level) for level in LEVELS}
    assert sorted(row.name for level in LEVELS for row in rows[level]) == NAMES
    minutes = {level: sum(row.minutes for row in rows[level]) for level in LEVELS}
    assert minutes["fast"] <= 2 * 20  # two cores
    assert minutes["gpu"] <= 45
    assert max(minutes.values()) <= 24 * 60
    assert any(not row.needs for row in rows["fast"])


@pytest.mark.parametrize("name", others_slow(NAMES, FAST))
def test_the_runs_of_a_row_pass_the_check_of_the_config(name, tmp_path):
    row = read_row(ROWS / f"{name}.yaml")
    for words, _ in _runs(row.model_copy(update={"seeds": [0]}), tmp_path):
        config = flfast.compose(*words)
        assert (config.callbacks, config.resume, config.seed) == ({}, "auto", 0)
        if row.read.measure == "rounds":
            assert config.rounds > 1


def test_every_closed_form_has_a_transcription():
    assert sorted(CLOSED) == [name for name in NAMES if name.startswith("closed_form")]


@pytest.mark.parametrize("name", CLOSED)
def test_a_closed_form_is_that_of_its_recursion(name):
    claims = read_row(ROWS / f"{name}.yaml").claims
    published = [claim.published for claim in claims if claim.published is not None]
    assert published == pytest.approx(CLOSED[name], abs=1e-6)


def test_settings_of_all_runs_are_said_once():
    keys = [word.partition("=")[0] for word in (*_ALWAYS, *_OF_EXAMPLES)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"claims": [{"of": "other", "published": 1, "tolerance": 1}]}, "variant other"),
        ({"claims": [{"of": "uniform", "tolerance": 1}]}, "either published or than"),
        ({"claims": [{"of": "uniform", "published": 1}]}, "one of tolerance, above, below"),
        ({"seeds": []}, "seeds"),
        ({"level": "slow"}, "'fast', 'day', 'gpu' or 'gpu_day'"),
        ({"read": {"column": "x", "measure": "median"}}, "read.measure"),
        ({"colour": 1}, "colour: Extra inputs"),
        ({"name": "x"}, "name"),
    ],
)
def test_a_file_that_is_no_row_is_refused_by_its_path(change, message, tmp_path):
    path = tmp_path / "row.yaml"
    path.write_text(yaml.safe_dump({**TINY, **change}))
    with pytest.raises(ConfigError, match=message) as refused:
        read_row(path)
    assert str(path) in str(refused.value)


def test_a_key_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "row.yaml"
    path.write_text(yaml.safe_dump(TINY) + "claims: []\n")
    with pytest.raises(ConfigError, match="duplicate key claims"):
        read_row(path)


def test_a_row_says_which_data_it_lacks(tmp_path, monkeypatch):
    row = read_row(ROWS / "mcmahan_2nn.yaml")
    monkeypatch.setenv("FLFAST_DATA", str(tmp_path))
    assert row.missing() == [f"{row.needs[0]} in the folder FLFAST_DATA"]
    file = tmp_path / row.needs[0].replace("*", ".gz")
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    assert row.missing() == []
    lacking = row.model_copy(update={"packages": ["torch", "no_such_package"]})
    assert lacking.missing() == ["the package no_such_package"]
    lacking = row.model_copy(update={"gpu": True})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert lacking.missing() == ["a GPU"]


def test_the_page_has_every_row_with_its_level():
    page = (Path(flfast.__file__).parents[1] / "docs" / "conformance.md").read_text()
    for name in NAMES:
        assert f"| `{name}` | {read_row(ROWS / f'{name}.yaml').level} |" in page


def test_rows_are_data_only():
    assert {path.suffix for path in Path(ROWS).iterdir()} == {".yaml"}
