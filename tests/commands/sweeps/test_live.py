from omegaconf import OmegaConf
from rich.console import Console

from flfast.commands.sweeps.job_folders import JobConfig
from flfast.commands.sweeps.live import JobTable
from flfast.config.folder_lock import FolderLock
from flfast.output.results.columns import COLUMNS
from flfast.output.results.outcome import Result, write_result
from flfast.output.results.table import RoundTable
from flfast.output.watch.view import sweep_table


def test_a_row_per_job(tmp_path):
    jobs = []
    for num in range(4):
        words = [f"seed=${{{num}}}", "rounds=9"]
        config = {"rounds": 9, "hydra": {"overrides": {"task": words}}}
        jobs.append(JobConfig(num, OmegaConf.create(config), tmp_path / str(num)))
        hydra = tmp_path / str(num) / ".hydra"
        hydra.mkdir(parents=True)
        (hydra / "config.yaml").write_text("rounds: 9\n")
        (hydra / "overrides.yaml").write_text("".join(f"- {word}\n" for word in words))
    for num, outcome in {1: "running", 2: "failed", 3: "finished"}.items():
        write_result(tmp_path / str(num), Result(outcome, {}))
    lock = FolderLock(tmp_path / "1", setting="hydra.sweep.dir")
    table = RoundTable(tmp_path / "1" / "metrics.csv", COLUMNS)
    for number in range(3):
        row = {"round": number, "val/accuracy": number / 4}
        table.append([row], round_idx=number)
    console = Console(width=100, file=(tmp_path / "screen").open("w"))
    console.print(sweep_table(JobTable(jobs).look({1, 2, 3})))
    console.file.close()
    lock.release()
    lines = (tmp_path / "screen").read_text().splitlines()
    rows = [line.split() for line in lines if line.strip() and line.strip()[0].isdecimal()]
    assert rows == [
        ["0", "seed=${0}", "waits", "0", "of", "9", "-", "-"],
        ["1", "seed=${1}", "running", "2", "of", "9", "50.00", "%", "0", "s"],
        ["2", "seed=${2}", "failed", "0", "of", "9", "-", "-"],
        ["3", "seed=${3}", "finished", "0", "of", "9", "-", "-"],
    ]
