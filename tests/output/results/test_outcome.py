"""One function says what has become of a run, and all who tell of it agree."""

import io
import math

import pytest
from rich.console import Console
from run_folders import accuracies, write_run

import flfast
from flfast.output.callbacks.comparison import write_comparison
from flfast.output.report.content import Content
from flfast.output.results.outcome import (
    RESULT,
    Result,
    holds_run,
    outcome,
    read_result,
    write_result,
)
from flfast.output.results.runs import find_runs
from flfast.output.results.table import read_rows
from flfast.output.watch.folder import read_progress
from flfast.output.watch.view import view

TINY = (
    *("experiment=quick", "model.hidden=[8]", "callbacks=none", "rounds=2", "checkpoint.every=1"),
    *("engine=eager", "batch_size=50"),
)


@pytest.mark.slow
def test_a_stopped_job_does_not_count_anywhere(flfast_run, tmp_path, capsys):
    """Nobody tells another story: table, CSV, report, watch and Python."""
    flfast_run("-m", "seed=0", *TINY, run_dir="sweep")
    stop = "+callbacks.ending={_target_: ending.Ending, how: stop, after: 1}"
    with pytest.raises(SystemExit) as end:
        flfast_run("-m", "seed=0,1", *TINY, "resume=auto", stop, run_dir="sweep")
    assert end.value.code == 75
    expected = ["finished", "stopped"]
    folder = tmp_path / "sweep"
    capsys.readouterr()
    write_comparison(folder)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["job", "1", "stopped"] in shown
    heading = next(num for num, line in enumerate(shown) if {"global/loss", "seeds"} <= {*line})
    assert shown[heading + 2][-1] == "1"
    assert [row["status"] for row in read_rows(folder / "comparison.csv")] == expected
    content = Content(find_runs([folder]))
    assert [run.outcome for run in content.runs] == expected
    assert [len(setting.finished) for setting in content.settings] == [1]
    jobs = [read_progress(folder / name) for name in ("0", "1")]
    out = io.StringIO()
    Console(file=out, width=160).print(view(jobs))
    assert [job.status for job in jobs] == expected
    assert "stopped" in out.getvalue()
    assert [flfast.Run(folder / name).outcome for name in ("0", "1")] == expected


@pytest.mark.parametrize("value", [0.5, None, math.nan, math.inf])
def test_a_result_is_read_as_it_was_written(tmp_path, value):
    written = Result("finished", {"rounds": 2, "shape": [1, 2]}, value)
    write_result(tmp_path, written)
    assert str(read_result(tmp_path)) == str(written)
    assert holds_run(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"value": 1}', '{"value": [], "config": {}}', "[" * 10**5),
        '{"outcome": "fine", "value": 1, "config": {}}',
        '{"outcome": [], "value": 1, "config": {}}',
    ],
    ids=range(8),
)
def test_a_broken_file_is_no_result(tmp_path, text):
    (tmp_path / RESULT).write_text(text)
    assert read_result(tmp_path) is None
    assert outcome(tmp_path) == "empty"


@pytest.mark.parametrize("rows", [0, 2])
def test_a_run_that_said_nothing_was_killed(tmp_path, rows):
    folder = write_run(tmp_path, config={"rounds": 2}, rows=accuracies(*[0.5] * rows))
    (folder / RESULT).unlink(missing_ok=True)
    assert outcome(folder) == "killed"
    assert holds_run(folder) is (rows > 0)
