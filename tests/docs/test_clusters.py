"""The page of clusters treats the exit codes of the command as what they are."""

import re

from pages import page

from flfast.output.results.outcome import EXIT_BUSY
from flfast.state.stop_requests import EXIT_STOPPED

SLURM = page("clusters").partition("\n## SLURM")[2].partition("\n## ")[0]


def test_the_script_of_slurm_requeues_a_job_that_can_go_on_or_whose_folder_is_busy():
    (line,) = re.findall(r"^if (.*); then scontrol requeue", SLURM, re.MULTILINE)
    assert {*map(int, re.findall(r"\$code -eq (\d+)", line))} == {EXIT_STOPPED, EXIT_BUSY}


def test_the_page_says_which_codes_are_temporary():
    told = re.findall(r"\*\*Exit code (\d+) is temporary", page("clusters"))
    assert {*map(int, told)} >= {EXIT_BUSY}
