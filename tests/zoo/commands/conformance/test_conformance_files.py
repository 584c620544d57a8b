"""From words to an exit code: runs that are kept, go on, are replaced, or fail."""

import json
import multiprocessing
import os
import signal
import time
from functools import partial
from pathlib import Path

import html_pages
import pytest
import yaml
from processes import Command

from flfast import train
from flfast.config.errors import ConfigError
from flfast.conformance import conformance, main
from flfast.zoo.commands.conformance.conformance_files import (
    PAGE,
    RECORD,
    broken,
    examine_rows,
    write_record,
)
from flfast.zoo.commands.conformance.judging import Judgement
from flfast.zoo.commands.conformance.row_files import ROWS, read_row

TINY = yaml.safe_load((ROWS / "closed_form_fedavg.yaml").read_text()) | {
    "settings": ["rounds=3", "batch_size=1", "local_epochs=1", "checkpoint.every=1"],
    "variants": {"a": {}, "b": {"settings": ["algorithm=fedprox"]}},
    "claims": [{"of": "a", "than": "b", "tolerance": 10}],
}


def write(folder, name="tiny", **changes):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({**TINY, **changes}))


def run_all(rows):
    os.setpgid(0, 0)
    found = [read_row(path) for path in sorted(Path(rows).glob("*.yaml"))]
    raise SystemExit(examine_rows(found, Path("out"), train.run_job, workers=1))


def start(folder):
    return Command(partial(run_all, folder / "rows"), (), folder, {})


def end(folder, code=0):
    found, errors = start(folder).end()
    assert found == code, errors + (folder / "stdout").read_text()
    return (folder / "stdout").read_text()


def record(folder):
    rows = json.loads((folder / "out" / RECORD).read_text())["rows"]
    return {row["row"]: row for row in rows}


def written(folder, run):
    return (folder / "out" / "tiny" / run / "result.json").stat().st_mtime_ns


@pytest.mark.slow
@pytest.mark.usefixtures("ran_once")
def test_runs_are_kept_replaced_and_judged(tmp_path):
    write(tmp_path / "rows")
    write(tmp_path / "rows", "without_data", needs=["no such file"])
    text = end(tmp_path)
    assert "1 rows hold, 0 miss, 1 were not run" in text
    found = record(tmp_path)
    assert found["tiny"]["verdict"] == "holds"
    assert found["tiny"]["seconds"] > 0
    assert "needs no such file" in found["without_data"]["verdict"]
    page = html_pages.parse((tmp_path / "out" / PAGE).read_text())
    assert [e.attributes["href"] for e in page.all("a")][1:] == [
        "#all-rows",
        "#tiny",
        "#without_data",
    ]
    last = [cell.text for cell in [*page.all("tr")][-1].all("th", "td")]
    assert (last[0], last[-1]) == ("a is b ± 10", "holds")

    before = written(tmp_path, "a-0"), written(tmp_path, "b-0")
    # Another config replaces runs; a claim that misses now, and held, fails.
    write(
        tmp_path / "rows",
        variants={"a": {}, "b": {"settings": ["algorithm=fedavgm"]}},
        claims=[{"of": "a", "than": "b", "above": 10}],
        holds=False,
    )
    text = end(tmp_path, code=1)
    assert "These held before: tiny" in text
    assert written(tmp_path, "a-0") == before[0]
    assert written(tmp_path, "b-0") > before[1]

    write(tmp_path / "rows", settings=[*TINY["settings"], "optimizer.lr=1e30"])
    text = end(tmp_path, code=1)
    assert "tiny/a-0 failed: " in text
    assert record(tmp_path)["tiny"]["verdict"].startswith("failed: a, seed 0: ")


@pytest.mark.usefixtures("ran_once")
@pytest.mark.slow
def test_a_folder_that_was_stopped_goes_on(tmp_path):
    many = [*TINY["settings"], "rounds=400"]
    write(tmp_path / "rows", variants={"a": {}, "b": {"settings": many[-1:]}})
    command = start(tmp_path)
    table = tmp_path / "out" / "tiny" / "b-0" / "metrics.csv"
    while not table.exists():
        assert multiprocessing.active_children(), (tmp_path / "stderr").read_text()
        time.sleep(0.01)
    os.kill(command.pid, signal.SIGTERM)
    code, _ = command.end()
    assert code == 75
    assert not (tmp_path / "out" / RECORD).exists()
    first = written(tmp_path, "a-0")
    done = len(table.read_text().splitlines())
    assert "1 rows hold" in end(tmp_path)
    assert written(tmp_path, "a-0") == first
    rounds = [int(line.split(",")[0]) for line in table.read_text().splitlines()[1:]]
    assert rounds == list(range(401))
    assert done < len(rounds)


def test_a_row_that_held_once_stays_held(tmp_path):
    write(tmp_path / "rows", holds=False)
    row = read_row(tmp_path / "rows" / "tiny.yaml")
    misses = Judgement(row, reason="x", failed=True)
    assert broken([misses], {}) == []
    held = {"tiny": {"row": "tiny", "held": True}}
    assert broken([misses], held) == ["tiny"]
    write_record([misses], held, tmp_path)
    rows = json.loads((tmp_path / RECORD).read_text())["rows"]
    assert [(row["holds"], row["held"]) for row in rows] == [(False, True)]
    not_run = Judgement(row, reason="needs y")
    assert broken([not_run], held) == []
    write_record([not_run], {"tiny": rows[0]}, tmp_path)
    assert json.loads((tmp_path / RECORD).read_text())["rows"] == rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["folder=x"], "no level is given; allowed: fast, day, gpu, gpu_day"),
        (["quick"], "quick: unknown level; allowed: fast, day, gpu, gpu_day"),
        (["fast", "closed_form_fedavgg"], "unknown row of fast; did you mean closed_form_fedavg"),
        (["fast", "zzz"], "zzz: unknown row of fast; allowed: closed_form_adam, "),
        (["fast", "ifca_rotated_mnist"], "a row of day; of fast: closed_form_adam, "),
        (["fast", "seed=3"], "seed=3: allowed: folder=FOLDER, workers=auto, workers=N"),
        (["fast", "folder="], "folder=: allowed: "),
        (["fast", "workers=0"], "workers=0: allowed: workers=auto, or a number >= 1"),
        (["fast", "workers=two"], "workers=two: allowed: "),
    ],
)
def test_wrong_words_are_named(words, message):
    with pytest.raises(ConfigError, match=message):
        conformance(words)


def test_help_needs_no_level(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["conformance", "--help"])
    main()
    assert "LEVEL [ROW...]" in capsys.readouterr().out
