"""Real runs and sweeps, followed from another process by their files."""

import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from flfast import train, watch
from flfast.config.folder_lock import FolderLock
from flfast.output.loggers.csv import RoundCSVLogger
from flfast.output.results.outcome import Result, write_result
from flfast.output.watch.folder import jobs_of, newest, read_progress
from flfast.output.watch.view import view

TINY = ("rounds=6", "batch_size=100", "local_epochs=1", "strategy=single", "callbacks=quiet")


def text(*jobs, width=160):
    out = io.StringIO()
    Console(file=out, width=width).print(view([read_progress(job) for job in jobs]))
    return out.getvalue()


@pytest.fixture
def folder(tmp_path):
    """A folder as a run leaves it, without rows."""
    hydra = tmp_path / "run" / ".hydra"
    hydra.mkdir(parents=True)
    (hydra / "config.yaml").write_text("rounds: 4\ntrainer:\n  fast_dev_run: false\n")
    (hydra / "overrides.yaml").write_text(
        "- rounds=4\n- algorithm=fedprox\n- eval_every=${rounds}\n"
    )
    return hydra.parent


@pytest.fixture
def log(folder):
    logger = RoundCSVLogger(save_dir=str(folder))

    def log(round_idx, **row):
        row = {"train/loss": 1 / (1 + round_idx), "val/accuracy": 0.5 + round_idx / 10, **row}
        logger.log_metrics({"round": round_idx, "time/train_s": 2.0, **row}, step=round_idx)

    return log


@pytest.mark.slow
def test_a_run_is_followed_to_its_end(start, capsys):
    command = start(train.main, *TINY, "hydra.run.dir=run")
    run = command.folder / "run"
    end = time.monotonic() + 120
    while not jobs_of(run) or read_progress(run).outcome != "running":
        assert time.monotonic() < end
        time.sleep(0.05)
    watch.follow_in_lines(run, every=0.05, once=False)
    command.end()
    shown = capsys.readouterr().out
    rounds = [int(number) for number in re.findall(r"^run  round (\d+) of 6", shown, re.M)]
    assert rounds == sorted(set(rounds))
    assert rounds[-1] == 6
    assert "finished" in shown


def test_it_says_what_a_run_does_now(folder, log):
    lock = FolderLock(folder, setting="hydra.run.dir")
    assert read_progress(folder).status == "starts"
    for round_idx in range(3):
        log(round_idx, **{"monitor/rank0_memory_bytes": 5e8, "clock/seconds": 60.0 * round_idx})
    shown = text(folder)
    for part in ("running", "round 2 of 4", "2 s a round", "4 s left", "500.0 MB", "virtual 2"):
        assert part in shown, part
    assert "70.00 %" in shown
    lock.release()
    assert "go on with: resume=auto hydra.run.dir=" in text(folder)
    write_result(folder, Result("finished", {}))
    assert read_progress(folder).status == "finished"


@pytest.mark.parametrize(
    "content",
    [
        "rounds: !!python/object/apply:os.system ['exit 1']",
        "rounds: !mine 3",
        "rounds: *nowhere",
        "rounds: {",
        "rounds: [1]",
        "rounds: four",
        "- rounds",
        "",
        "\xff",
    ],
)
@pytest.mark.parametrize("name", [".hydra/config.yaml", ".hydra/overrides.yaml", "metrics.csv"])
def test_damaged_files_are_named(folder, log, capsys, monkeypatch, name, content):
    log(0)
    (folder / name).write_bytes(content.encode("latin-1"))
    monkeypatch.setattr("sys.argv", ["watch", str(folder), "--once"])
    with pytest.raises(SystemExit) as stop:
        watch.main()
    assert stop.value.code == 2
    assert str(folder / name) in capsys.readouterr().err


def test_cells_that_are_no_numbers_are_named(folder, log):
    log(0)
    path = folder / "metrics.csv"
    lines = path.read_text().splitlines()
    cells = lines[1].split(",")
    for place, message in ((0, "a row is of no round"), (1, "is no table of numbers")):
        changed = ["x" if i == place else cell for i, cell in enumerate(cells)]
        path.write_text("\n".join([lines[0], ",".join(changed), ""]))
        with pytest.raises(ValueError, match=f"{path}.*{message}"):
            read_progress(folder)


def test_losses_are_shown_without_accuracies(folder, log):
    log(1, **{"val/accuracy": "", "val/loss": 0.25})
    assert "val/loss" in text(folder)
    assert "val/accuracy" not in text(folder)


def test_warnings_are_shown(folder, log):
    log(0)
    line = "[2026-11-22 10:00:00,000][flfast.federation.loop][WARNING] - round 1: clients [3] ..."
    (folder / "train.log").write_text(f"{line}\n[..][INFO] - nothing\n")
    assert read_progress(folder).warnings == ["round 1: clients [3] ..."]
    assert "clients [3]" in text(folder)


def test_a_sweep_is_a_line_for_each_job(folder, log, tmp_path):
    log(4)
    other = tmp_path / "10"
    (other / ".hydra").mkdir(parents=True)
    for name in ("config.yaml", "overrides.yaml"):
        text_there = (folder / ".hydra" / name).read_text()
        (other / ".hydra" / name).write_text(text_there.replace("=fedprox", "=fedavg"))
    write_result(folder, Result("finished", {}))
    jobs = jobs_of(tmp_path)
    assert jobs == [other, folder]
    rows = [row for row in text(*jobs).splitlines() if "algorithm=" in row]
    assert ["killed" in rows[0], "finished" in rows[1]] == [True, True]
    assert "4 of 4" in rows[1]
    assert "rounds=4" not in rows[1]  # all jobs have it
    assert "90.00 %" in rows[1]


def test_a_sweep_goes_on_between_two_jobs(folder, log, tmp_path):
    log(4)
    jobs = [read_progress(job) for job in jobs_of(tmp_path)]
    assert not watch._goes_on(tmp_path, jobs)
    lock = FolderLock(tmp_path, setting="hydra.sweep.dir")
    assert watch._goes_on(tmp_path, jobs)
    lock.release()
    (tmp_path / "multirun.yaml").touch()
    (folder / "metrics.csv").unlink()
    assert f"resume=auto hydra.sweep.dir={tmp_path}" in text(folder, width=400)


def test_the_newest_folder_is_the_default(tmp_path, monkeypatch, capsys):
    assert newest(tmp_path) is None
    for name in ("outputs/d/1", "multirun/d/2/0"):
        hydra = tmp_path / name / ".hydra"
        hydra.mkdir(parents=True)
        (hydra / "config.yaml").write_text("rounds: 4\n")
        (hydra / "overrides.yaml").write_text("[]\n")
        time.sleep(0.01)
    assert newest(tmp_path) == tmp_path / "multirun/d/2"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["watch", "--once"])
    watch.main()
    assert "0 of 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no run below outputs"),
        (["here"], "here: no run is there"),
        (["here", "--every", "0"], "--every=0"),
    ],
)
def test_bad_input_is_one_message(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["watch", *arguments])
    with pytest.raises(SystemExit) as end:
        watch.main()
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_a_torn_table_is_one_message(folder, monkeypatch, capsys):
    (folder / "metrics.csv").write_bytes(b"\xff\xfe")
    monkeypatch.setattr("sys.argv", ["watch", str(folder), "--once"])
    with pytest.raises(SystemExit):
        watch.main()
    assert f"{Path(folder) / 'metrics.csv'} is no table" in capsys.readouterr().err
