import pytest
from lightning.pytorch.utilities import rank_zero_only
from run_folders import write_run

from flfast.output.callbacks.report_page import ReportPage


def test_a_run_is_reported_also_without_a_logger(federation):
    run = federation()
    write_run(run.run_dir, config={"rounds": 40}, choices={"algorithm": "fedavg"})
    ReportPage().on_run_end(run)
    text = (run.run_dir / "report.html").read_text(encoding="utf-8")
    assert "fedavg: personal/accuracy" in text
    assert "after round 40." in text
    assert not (run.run_dir / "metrics.csv").exists()


def test_a_report_that_fails_is_a_warning(federation, caplog):
    run = federation()
    ReportPage().on_run_end(run)
    assert "report.html was not written: FileNotFoundError" in caplog.text
    write_run(run.run_dir)
    run.history = [{"round": "x", "global/accuracy": 0.5}]
    ReportPage().on_run_end(run)
    assert "report.html was not written: ValueError" in caplog.text
    assert not (run.run_dir / "report.html").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_writes(federation, monkeypatch, rank):
    run = federation()
    write_run(run.run_dir)
    monkeypatch.setattr(rank_zero_only, "rank", rank)
    ReportPage().on_run_end(run)
    assert (run.run_dir / "report.html").exists() == (rank == 0)
