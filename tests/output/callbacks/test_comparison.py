import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sampling import others_slow

import flfast
from flfast.output.callbacks.comparison import (
    SweepComparison,
    draw_comparison,
    write_comparison,
)
from flfast.output.report.content import Content
from flfast.output.results.columns import COLUMNS
from flfast.output.results.criterion import shown_columns, spent_until
from flfast.output.results.outcome import Result, write_result
from flfast.output.results.runs import read_jobs
from flfast.output.results.table import RoundTable, read_rows

GROUPS = ("algorithm", "pace", "compression")
REPOSITORY = Path(flfast.__file__).parents[1]

APP = """
import sys
from pathlib import Path
import hydra
from flfast.config.job import HydraJob
from flfast.config.run_folder import lock_job, recorded
from flfast.output.results.columns import COLUMNS
from flfast.output.results.outcome import Result, write_result
from flfast.output.results.table import RoundTable

@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg):
    node = hydra.core.hydra_config.HydraConfig.instance().cfg
    folder = node.hydra.runtime.output_dir
    lock_job(node)
    with HydraJob.of(node, cfg).new_settings():
        write_result(Path(folder), Result("running", {}))
    recorded(Path(folder), lambda: train(cfg, folder))
    assert not {"torch", "lightning"} & sys.modules.keys()

def train(cfg, folder):
    if cfg.alpha == 9 and cfg.seed == 2:
        raise ValueError("diverged")
    table = RoundTable(Path(folder) / "metrics.csv", COLUMNS)
    for r in range(3):
        accuracy = r / 4 + cfg.seed / 100
        table.append([{"round": r, "global/accuracy": accuracy}], round_idx=r)

if __name__ == "__main__":
    main()
"""

CONFIG = """
defaults:
  - _self_
  - hydra: default
seed: 1
alpha: 0.5
"""


def make_job(
    sweep, num, overrides, values, view="local", seconds=None, *, metric="accuracy", size=None
):
    folder = sweep / str(num)
    (folder / ".hydra").mkdir(parents=True)
    words = "".join(f"- {word}\n" for word in overrides) or "[]\n"
    (folder / ".hydra" / "overrides.yaml").write_text(words)
    chosen = dict(word.lstrip("+").split("=") for word in overrides)
    choices = {key: value for key, value in chosen.items() if key in GROUPS}
    config = {key: value for key, value in chosen.items() if key not in GROUPS}
    config = {"optimized_metric": "auto", **config}
    (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    hydra = {"job": {"num": num}, "runtime": {"choices": choices}}
    (folder / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump({"hydra": hydra}))
    table = RoundTable(folder / "metrics.csv", COLUMNS)
    for round_idx, value in enumerate(values):
        row = {"round": round_idx, f"{view}/{metric}": value, "time/train_s": 1.5}
        if seconds and round_idx:
            row["clock/seconds"] = seconds * round_idx
        if size is not None:
            row["comm/up_bytes"] = size if round_idx else 0
        table.append([row], round_idx=round_idx)
    if values:
        write_result(folder, Result("finished", {}))


@pytest.fixture
def sweep(tmp_path):
    for num in range(11):
        words = ["rounds=2", f"+partition.alpha={num // 2}", f"seed={num % 2}"]
        accuracies = [] if num == 3 else [0.1, "", 0.5 + num / 100]
        make_job(tmp_path, num, words, accuracies)
    return tmp_path


def test_jobs_come_in_the_order_of_their_numbers(sweep):
    jobs = read_jobs(sweep)
    assert [job.num for job in jobs] == list(range(11))
    assert Content(jobs).keys == ["partition.alpha"]
    assert [job.num for job in jobs if not job.counts] == [3]


def test_jobs_that_differ_in_the_seed_alone_are_averaged(sweep):
    content = Content(read_jobs(sweep))
    assert [job.num for job in content.settings[0].runs] == [0, 1]
    (chart,) = content.criterion_charts
    assert chart.y == "local/accuracy"
    assert chart.lines[0].name == "alpha=0"
    assert list(chart.lines[0].x) == [0, 2]
    assert chart.lines[0].y[1] == pytest.approx(0.505)


def test_the_report_names_what_differs_and_what_failed(sweep, capsys):
    write_comparison(sweep)
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["job", "partition.alpha", "seed", "local/accuracy", "rounds", "time"] in lines
    assert "rounds=2" not in out
    assert ["3", "1", "1", "-", "-", "killed"] in lines
    assert ["10", "5", "0", "60.00", "%", "2", "4.5", "s"] in lines
    assert ["0", "50.50", "±", "0.71", "%", "2"] in lines
    assert ["1", "52.00", "%", "1"] in lines
    rows = read_rows(sweep / "comparison.csv")
    assert [row["status"] for row in rows].count("killed") == 1
    assert rows[10]["partition.alpha"] == "5"
    assert float(rows[10]["local/accuracy"]) == 0.6
    assert rows[10]["global/accuracy"] == ""
    assert (sweep / "comparison.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("views", "shown"),
    [
        (("global", "global"), ["global/accuracy"]),
        (("local", "personal"), ["personal/accuracy", "local/accuracy"]),
        (("personal", "personal"), ["personal/accuracy"]),
        (("global", "personal"), ["global/accuracy"]),
    ],
)
def test_the_picture_shows_the_models_that_clients_would_use(tmp_path, views, shown):
    for num, view in enumerate(views):
        make_job(tmp_path, num, [f"algorithm={num}"], [0.1, 0.2], view)
    jobs = read_jobs(tmp_path)
    assert shown_columns(jobs) == shown
    draw_comparison(Content(jobs), tmp_path / "comparison.png")
    assert (tmp_path / "comparison.png").exists()


def test_jobs_without_accuracy_are_compared_by_their_losses(tmp_path, capsys):
    for num in range(2):
        make_job(tmp_path, num, [f"rounds={num}"], [2.0, 1.0 + num], "val", metric="loss")
    write_comparison(tmp_path)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["job", "rounds", "val/loss", "rounds", "time"] in lines
    assert read_rows(tmp_path / "comparison.csv")[1]["val/loss"] == "2.0"
    assert (tmp_path / "comparison.png").exists()


@pytest.fixture
def timed(tmp_path):
    """A sweep with clocks: two seeds of two paces, and a job that has failed."""
    curves = {"sync": ([0.1, 0.5, 0.8], 600), "async": ([0.1, 0.3, 0.6, 0.7], 60)}
    jobs = [(pace, seed) for pace in curves for seed in (0, 1)]
    for num, (pace, seed) in enumerate(jobs):
        accuracies, seconds = curves[pace]
        accuracies = [accuracy + seed / 50 for accuracy in accuracies]
        words = [f"pace={pace}", f"seed={seed}"]
        make_job(tmp_path, num, words, accuracies, "global", seconds * (1 + seed))
    make_job(tmp_path, 4, ["pace=buffered", "seed=0"], [])
    return tmp_path


def test_runs_with_a_clock_are_compared_at_the_accuracy_that_all_reach(timed, capsys):
    content = Content(read_jobs(timed))
    assert content.target == 0.7
    spent = [spent_until(job.history, content.criterion, 0.7) for job in content.runs[:4]]
    assert [(one.rounds, one.virtual_seconds) for one in spent] == [
        (2, 1200),
        (2, 2400),
        (3, 180),
        (3, 360),
    ]
    write_comparison(timed)
    out = capsys.readouterr().out
    headings = " ".join(out.split())
    assert "rounds to 70.00 % virtual time to 70.00 % seeds" in headings
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "0 sync 0 80.00 % 2 20 min 2 4.5 s" in lines
    assert "4 buffered 0 - - - - killed" in lines
    assert "sync 81.00 ± 1.41 % 2 ± 0.0 30 ± 14.1 min 2" in lines
    assert "buffered - - - 0" in lines
    rows = read_rows(timed / "comparison.csv")
    assert rows[3]["target"] == "0.7"
    assert (rows[3]["rounds_to_target"], rows[3]["virtual_seconds_to_target"]) == ("3", "360.0")
    assert rows[4]["rounds_to_target"] == ""


def test_the_comparison_has_a_second_part_over_virtual_time(timed):
    write_comparison(timed)
    width = int.from_bytes((timed / "comparison.png").read_bytes()[16:20], "big")
    assert width == 14 * 150


def test_over_virtual_time_seeds_are_averaged_while_all_of_them_run(timed):
    _, chart = Content(read_jobs(timed)).criterion_charts
    assert chart.x == "virtual time [min]"
    sync, _, failed = chart.lines
    assert list(sync.x) == [0, 10, 20]
    assert list(sync.y) == pytest.approx([0.11, 0.41, 0.66])
    assert not failed.x


def test_a_sweep_over_compressions_is_drawn_over_uploaded_bytes(tmp_path):
    for num, size in enumerate((4e6, 4e6, 1e6)):
        words = [f"compression={'quantize' if num == 2 else 'none'}", f"seed={num % 2}"]
        make_job(tmp_path, num, words, [0.1, 0.5 + num / 10, 0.7], size=size)
    _, chart = Content(read_jobs(tmp_path)).criterion_charts
    assert chart.log
    plain, quantized = chart.lines
    assert list(plain.x) == [4, 8]
    assert list(plain.y) == pytest.approx([0.55, 0.7])
    assert list(quantized.x) == [1, 2]
    write_comparison(tmp_path)
    width = int.from_bytes((tmp_path / "comparison.png").read_bytes()[16:20], "big")
    assert width == 14 * 150


def test_the_picture_is_there_in_every_format_that_is_asked_for(timed):
    write_comparison(timed, ("svg", "pdf"))
    assert {path.suffix for path in timed.glob("comparison.*")} == {".csv", ".svg", ".pdf"}


@pytest.mark.parametrize("formats", [[], ["gif"], ["png", "x"]])
def test_another_format_is_refused_before_any_job(formats):
    with pytest.raises(
        ValueError, match=r"hydra\.callbacks\.comparison\.formats=.* png, svg, pdf"
    ):
        SweepComparison(formats=formats)


def test_sweeps_without_a_clock_have_no_target(sweep, capsys):
    write_comparison(sweep)
    assert "virtual" not in capsys.readouterr().out
    assert "target" not in read_rows(sweep / "comparison.csv")[0]


def test_a_sweep_in_which_all_failed_or_nothing_began_is_reported_too(tmp_path, capsys):
    write_comparison(tmp_path)
    assert capsys.readouterr().out == ""
    make_job(tmp_path, 0, [], [])
    write_comparison(tmp_path)
    assert "job 0 killed: it wrote no numbers" in capsys.readouterr().out
    assert not (tmp_path / "comparison.png").exists()


def test_single_runs_inside_the_sweep_folder_are_no_jobs(sweep):
    make_job(sweep, 77, [], [0.5])
    (sweep / "77" / ".hydra" / "hydra.yaml").write_text("hydra:\n  job:\n    num: ???\n")
    assert len(read_jobs(sweep)) == 11


@pytest.fixture
def app(tmp_path):
    """A Hydra application that composes the real `conf/hydra/default.yaml`."""
    (tmp_path / "conf" / "hydra").mkdir(parents=True)
    source = REPOSITORY / "conf" / "hydra" / "default.yaml"
    (tmp_path / "conf" / "hydra" / "default.yaml").write_text(source.read_text())
    (tmp_path / "conf" / "config.yaml").write_text(CONFIG)
    (tmp_path / "app.py").write_text(APP)

    def run(*words):
        return subprocess.run(
            [sys.executable, "-W", "error::UserWarning", "app.py", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


@pytest.mark.slow
def test_a_sweep_ends_with_its_comparison_without_importing_torch(app, tmp_path):
    done = app("-m", "alpha=0.1,0.5", "seed=1,2")
    assert done.returncode == 0, done.stderr
    assert "Mean ± std over seeds" in done.stdout
    assert "51.50 ± 0.71 %" in done.stdout
    (table,) = tmp_path.glob("multirun/*/*/comparison.csv")
    assert len(table.read_text().splitlines()) == 5
    assert done.stdout.count("Jobs") == 1
    assert (table.parent / "comparison.png").exists()
    assert (table.parent / "3" / "metrics.csv").exists()


@pytest.mark.slow
def test_a_sweep_with_a_failed_job_is_compared_all_the_same(app, tmp_path):
    failed = app("-m", "alpha=9", "seed=1,2")
    assert failed.returncode == 1
    assert "ValueError: diverged" in failed.stderr
    (table,) = tmp_path.glob("multirun/*/*/comparison.csv")
    statuses = [line.split(",")[1] for line in table.read_text().splitlines()[1:]]
    assert statuses == ["finished", "failed"]
    assert "failed" in failed.stdout


@pytest.mark.slow
def test_help_says_what_to_type_and_a_run_gets_its_own_folder(app, tmp_path):
    shown = app("--help").stdout
    assert shown.startswith("flfast: ")
    for command in ("rounds=20", "partition.alpha=0.1", "-m algorithm=fedavg seed=1,2"):
        assert f"python -m flfast.train {command}" in shown
    assert "alpha: 0.5" in shown
    assert app().returncode == 0
    assert len(list(tmp_path.glob("outputs/*/*/metrics.csv"))) == 1
    assert not list(tmp_path.rglob("comparison.csv"))


BROKEN = [
    b"\xff\xfe\n",
    b"round,local/accuracy\n0,",
    b"no,table\n1,2\n",
    b"round,global/loss\n1,x\n",
]


@pytest.mark.parametrize("content", others_slow(BROKEN, BROKEN[:1]))
def test_a_table_that_cannot_be_read_is_one_job_that_failed(sweep, content):
    (sweep / "2" / "metrics.csv").write_bytes(content)
    jobs = read_jobs(sweep)
    write_comparison(sweep)
    rows = read_rows(sweep / "comparison.csv")
    assert len(jobs) == len(rows) == 11
    assert sum(job.counts for job in jobs) == 9
