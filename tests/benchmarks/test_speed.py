import json
import os
import subprocess
import sys

import pytest

from benchmarks.speed import arguments, interleaved


def speed(root, *options):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.speed", *options],
        cwd=root,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_quick_call_leaves_a_table_numbers_and_a_picture(root, tmp_path):
    contenders = ("--contenders", "plain-1", "eager")
    done = speed(root, "--quick", "--workloads", "W2", *contenders, "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr + done.stdout
    assert "W2-quick" in done.stdout
    (picture,) = tmp_path.glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    result = json.loads(picture.with_suffix(".json").read_text())
    assert result["machine"]["cores"] >= 1
    (entry,) = result["workloads"]
    for runs in entry["measured"].values():
        (run,) = runs
        (row,) = run["rounds"]  # the warm-up round is left out
        assert row["train_s"] > 0 < row["eval_s"]
        assert run["startup_s"] > 0
        assert (run["steps"], run["samples"]) == (entry["steps"], entry["samples"])
        assert 0 <= run["accuracy"] <= 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--workloads", "W9"), "--workloads W9: no such workload; allowed: W1, "),
        (("--contenders", "fastest"), "--contenders fastest: no such contender; allowed: plain-"),
        (("--repeats", "0"), "0 is no count >= 1"),
    ],
)
def test_what_cannot_run_is_said_at_once(root, options, said):
    done = speed(root, *options)
    assert done.returncode
    assert said in done.stderr


def test_a_failing_contender_ends_the_call_with_what_it_said(root, tmp_path):
    options = ("--quick", "--workloads", "W2", "--contenders", "eager", "--output", str(tmp_path))
    done = speed(root, *options, "--overrides", "roundz=1")
    assert done.returncode == 1
    assert "roundz" in done.stdout
    assert not list(tmp_path.iterdir())  # nothing was measured


def test_the_order_of_contenders_rotates():
    order = [(repeat, who) for repeat, who in interleaved(["a", "b", "c"], 2)]
    assert order == [(0, "a"), (0, "b"), (0, "c"), (1, "b"), (1, "c"), (1, "a")]


def test_a_quick_call_repeats_once():
    assert arguments(["--quick", "--repeats", "5"]).repeats == 1
