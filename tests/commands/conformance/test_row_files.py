"""The rows that are shipped: valid, composed, and their closed forms by another way."""

import math
from pathlib import Path

import pytest
import yaml
from sampling import others_slow

import flfast
from flfast.commands.conformance.row_files import LEVELS, ROWS, read_row, read_rows
from flfast.commands.conformance.row_jobs import _ALWAYS, _OF_EXAMPLES, _runs
from flfast.config.errors import ConfigError

NAMES = sorted(path.stem for path in ROWS.glob("*.yaml"))
TINY = yaml.safe_load((ROWS / "closed_form_fedavg.yaml").read_text())


def test_every_row_is_of_a_level_whose_rows_fit_into_its_time():
    rows = {level: read_rows(level) for level in LEVELS}
    assert sorted(row.name for level in LEVELS for row in rows[level]) == NAMES
    minutes = {level: sum(row.minutes for row in rows[level]) for level in LEVELS}
    assert minutes["fast"] <= 2 * 20  # two cores
    assert minutes["gpu"] <= 45
    assert max(minutes.values()) <= 24 * 60
    assert any(not row.needs for row in rows["fast"])


@pytest.mark.parametrize("name", others_slow(NAMES, NAMES[::6]))
def test_the_runs_of_a_row_pass_the_check_of_the_config(name, tmp_path):
    row = read_row(ROWS / f"{name}.yaml")
    for words, _ in _runs(row.model_copy(update={"seeds": [0]}), tmp_path):
        config = flfast.compose(*words)
        assert (config.callbacks, config.resume, config.seed) == ({}, "auto", 0)
        if row.read.measure == "rounds":
            assert config.rounds > 1


def fixed_point(gains, sizes, targets):
    """Where the weighted changes gain * (target - z) of both clients cancel."""
    z, step = 0.0, 1 / sum(g * n for g, n in zip(gains, sizes, strict=True))
    for _ in range(100):
        z += step * sum(n * g * (b - z) for g, n, b in zip(gains, sizes, targets, strict=True))
    return z


def gain(steps, *, mu=0.0):
    """The share of the way from the start to 1 that local steps take, step by step."""
    y = 0.0
    for _ in range(steps):
        y -= 0.05 * (4 * (y - 1) + mu * y)
    return y


def server_steps(next_state, *, rounds):
    """Sum of the steps m / sqrt(v) of two coordinates, whose change is 1 in all rounds."""
    moved = m = v = 0.0
    for _ in range(rounds):
        m, v = next_state(m, v)
        moved += 2 * 0.1 * m / math.sqrt(v)
    return moved


def momentum_decay():
    e, v = 1.0, 0.0
    for _ in range(5):
        change = -e * (0.25 * (1 - 0.96) + 0.75 * (1 - 0.96**3))
        v = 0.9 * v - change
        e -= 0.5 * v
    return e**2


SIZES, TARGETS = (1, 3), (1, 5)
TWO = fixed_point([gain(2), gain(6)], SIZES, TARGETS)
CLOSED = {
    "closed_form_fedavg": [
        fixed_point([gain(1), gain(3)], SIZES, TARGETS),
        TWO,
        fixed_point([gain(2), gain(6)], (1, 1), TARGETS),
    ],
    "closed_form_fedprox": [
        fixed_point([gain(2, mu=2), gain(6, mu=2)], SIZES, TARGETS),
        TWO,
    ],
    "closed_form_fednova": [fixed_point([gain(2) / 2, gain(6) / 6], SIZES, TARGETS)],
    "closed_form_scaffold": [3.0],
    "closed_form_ditto": [sum((4 * b + 2 * TWO) / 6 for b in TARGETS) / 2, TWO],
    "closed_form_server_momentum": [
        momentum_decay(),
        (1 - (0.25 * (1 - 0.96) + 0.75 * (1 - 0.96**3))) ** 10,
    ],
    "closed_form_server_adaptive": [
        server_steps(lambda m, v: (0.9 * m + 0.1, 0.99 * v + 0.01), rounds=10),
        server_steps(lambda m, v: (0.9 * m + 0.1, v + 0.01), rounds=10),
        server_steps(lambda m, v: (1.0, v + 1), rounds=10),
    ],
}


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
