from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf
from rich.console import Console

from flfast.commands.sweeps.live import job_table
from flfast.output.results.columns import COLUMNS
from flfast.output.results.table import RoundTable


def test_a_row_per_job(tmp_path):
    jobs = []
    for num in range(4):
        config = {"rounds": 9, "hydra": {"overrides": {"task": [f"seed=${{{num}}}", "rounds=9"]}}}
        jobs.append((num, tmp_path / str(num), OmegaConf.create(config)))
    (tmp_path / "1").mkdir()
    table = RoundTable(tmp_path / "1" / "metrics.csv", COLUMNS)
    for number in range(3):
        row = {"round": number, "val/accuracy": number / 4}
        table.append([row], round_idx=number)
    results = {2: JobReturn(status=JobStatus.FAILED), 3: JobReturn(status=JobStatus.COMPLETED)}
    console = Console(width=100, file=(tmp_path / "screen").open("w"))
    console.print(job_table(jobs, {1}, results))
    console.file.close()
    lines = (tmp_path / "screen").read_text().splitlines()
    rows = [line.split() for line in lines if line.strip() and line.strip()[0].isdecimal()]
    assert rows == [
        ["0", "seed=${0}", "waits"],
        ["1", "seed=${1}", "runs", "2", "of", "9", "50.00", "%"],
        ["2", "seed=${2}", "failed"],
        ["3", "seed=${3}", "done"],
    ]
