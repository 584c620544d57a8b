import io
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rich
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback

from flfast.output.callbacks.progress import RoundProgress
from flfast.output.callbacks.summary import FinalTable
from flfast.output.results.formats import readable

CONF = Path(__file__).parents[3] / "conf"
FILES = {"clients_table", "events_table", "partition_report", "devices_figure", "curves"} | {
    "events_figure",
    "final_weights",
    "mask_samples",
    "monitor",
    "text_samples",
}


@pytest.fixture
def screen():
    """What rich's own console writes, as if to a terminal."""
    written, before = io.StringIO(), rich.get_console().__dict__.copy()
    rich.reconfigure(file=written, force_terminal=True, width=120, color_system=None)
    yield written
    rich.get_console().__dict__ = before


def play(progress, run, rows):
    progress.on_run_start(run)
    cohort = SimpleNamespace(clients=np.arange(3), dropped=np.arange(0))
    for row in rows:
        if row["round"]:
            progress.on_round_start(run, None, cohort)
            for client_id in cohort.clients:
                progress.on_client_end(run, SimpleNamespace(client_id=client_id))
        run.history.append(row)
        progress.on_round_end(run, row, {})


def test_progress_shows_rounds_clients_and_scores(federation, history, screen):
    run = federation()
    run.history, run.rounds = [], 4
    progress = RoundProgress(refresh_per_second=4)
    play(progress, run, history(rounds=4))
    progress.on_run_end(run)
    final = screen.getvalue().replace("\r", "\n").splitlines()[-3:]
    text = "\n".join(final)
    assert "4/4" in text
    assert "3/3" in text
    assert "clients/s" in text
    assert "accuracy" in text


def test_progress_shows_the_clock_of_virtual_time(federation, history, screen):
    run = federation()
    run.history, run.rounds = [], 4
    progress = RoundProgress(refresh_per_second=4)
    play(progress, run, history(rounds=4, clock=True))
    progress.on_run_end(run)
    *_, last = screen.getvalue().replace("\r", "\n").split("clients ")
    assert "clients/s  virtual 6.37 min  staleness 1.25  12 in flight" in last


def test_progress_shows_what_the_run_measures(federation, screen):
    run = federation()
    used = {"monitor/rank0_memory_bytes": 5e8, "monitor/gpu_percent": 85.0}
    run.history = [{"round": 0}, {"round": 1, "clock/seconds": 500_000.0, **used}]
    progress = RoundProgress(refresh_per_second=4)
    progress.on_run_start(run)
    progress.close()
    assert "virtual 5.79 days" in screen.getvalue()
    assert "500.0 MB  GPU 85 %" in screen.getvalue()
    assert "staleness" not in screen.getvalue()


def test_progress_of_a_resumed_run_starts_where_it_stopped(federation, history, screen):
    run = federation()
    run.history, run.rounds = history(rounds=2), 4
    progress = RoundProgress(refresh_per_second=4)
    progress.on_run_start(run)
    progress.close()
    assert "2/4" in screen.getvalue()


@pytest.mark.parametrize(
    ("seconds", "rounds"), [(1.0, []), (12.0, [3, 6]), (31.0, [1, 2, 3, 4, 5, 6]), (0.0, [])]
)
def test_without_a_terminal_a_line_per_round_or_per_30_s(  # whichever is less frequent
    federation, history, caplog, monkeypatch, seconds, rounds
):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("flfast.output.callbacks.progress.perf_counter", lambda: clock.now)
    run = federation()
    run.history, run.rounds = [], 7
    progress = RoundProgress(refresh_per_second=4)
    progress.on_run_start(run)
    with caplog.at_level("INFO"):
        for row in history(rounds=7):
            clock.now += seconds * (row["round"] > 0)
            run.history.append(row)
            progress.on_round_end(run, row, {})
    progress.on_run_end(run)
    lines = caplog.messages
    assert [int(line.split()[1]) for line in lines] == rounds
    assert all(line.startswith("round ") and "accuracy" in line for line in lines)
    assert not lines or f"about {readable(seconds * (7 - rounds[0]))} left" in lines[0]


@pytest.mark.parametrize(("has_widgets", "is_rank"), [(True, False), (False, False), (True, True)])
def test_progress_in_a_notebook_needs_its_widgets(
    federation, screen, monkeypatch, has_widgets, is_rank
):
    """Without them, rich would warn at every refresh; those of a forked rank come in any order."""
    monkeypatch.setattr(
        "flfast.output.callbacks.progress.find_spec", lambda name: has_widgets or None
    )
    parent = object() if is_rank else None
    monkeypatch.setattr(
        "flfast.output.callbacks.progress.multiprocessing.parent_process", lambda: parent
    )
    rich.reconfigure(file=screen, force_terminal=False)
    rich.get_console().is_jupyter = True
    monkeypatch.setattr("rich.progress.Progress.start", lambda bars: None)
    monkeypatch.setattr("rich.progress.Progress.stop", lambda bars: None)
    progress = RoundProgress(refresh_per_second=4)
    progress.on_run_start(federation())
    assert (progress._bars is not None) is (has_widgets and not is_rank)
    progress.close()


def test_a_failing_run_gets_its_terminal_and_log_back(federation, history, screen):
    run = federation()
    run.history, run.rounds = [], 4
    stdout = sys.stdout
    handler = logging.StreamHandler(stdout)
    logging.getLogger().addHandler(handler)
    try:
        progress = RoundProgress(refresh_per_second=4)
        play(progress, run, history(rounds=2))
        assert handler.stream is not stdout
        progress.on_exception(None, None, RuntimeError())
        progress.close()
        assert handler.stream is stdout
        assert sys.stdout is stdout
        progress.on_client_end(run, SimpleNamespace(client_id=0))
        progress.on_round_end(run, history(rounds=3)[3], {})
    finally:
        logging.getLogger().removeHandler(handler)
    assert screen.getvalue().endswith("\x1b[?25h")


def test_the_final_table_shows_first_best_and_last(federation, capsys):
    run = federation()
    run.history[10]["val/accuracy"] = 0.99
    run.history[40]["global/auc"] = float("nan")
    FinalTable().on_run_end(run)
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines() if str(run.run_dir) not in line) <= 100
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "first (round 0)" in out
    assert "best val (round 10)" in out
    assert "last (round 40)" in out
    assert "99.00 %" in lines["val/accuracy"]
    assert lines["global/auc"].split()[-1] == "-"
    assert "40 rounds in 9.0 s" in out
    assert "up 84.0 MB" in out
    assert out.splitlines()[-1] == str(run.run_dir)


def test_the_final_table_names_virtual_time(federation, history, capsys):
    run = federation()
    run.history = history(clock=True)
    FinalTable().on_run_end(run)
    assert "virtual time 63.7 min" in capsys.readouterr().out


def test_the_final_table_invents_no_best_without_validation(federation, history, capsys):
    run = federation()
    run.history = history(views=("global",))
    FinalTable().on_run_end(run)
    out = capsys.readouterr().out
    assert "best" not in out
    assert "local" not in out


def test_a_run_without_any_row_ends_quietly(federation, capsys):
    run = federation()
    run.history = []
    FinalTable().on_run_end(run)
    assert "0 rounds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("none", set()),
        ("quiet", FILES),
        ("files", {"report_page"} | FILES),
        ("default", {"progress", "final_table", "report_page"} | FILES),
    ],
)
def test_every_choice_of_callbacks_can_be_built(option, names):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        node = compose(overrides=[f"+callbacks={option}"]).get("callbacks", {})
    chosen = {name: callback for name, callback in node.items() if callback is not None}
    assert set(chosen) == names
    assert all(isinstance(instantiate(callback), Callback) for callback in chosen.values())


def test_bars_close_before_the_table_is_printed():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        names = list(compose(overrides=["+callbacks=default"]).callbacks)
    assert names.index("progress") < names.index("final_table")
