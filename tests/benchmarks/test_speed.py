import json
import sys

import campaign
import pytest

from benchmarks.checkouts import commit
from benchmarks.speed import arguments, interleaved, main


@pytest.fixture
def speed(monkeypatch, capsys):
    """The command in this process; contenders have their own: (exit code, what it said)."""

    def speed(*options):
        monkeypatch.setattr(sys, "argv", ["speed", *options])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        said = capsys.readouterr()
        # Python writes a code that is a text to stderr.
        return (1, code) if isinstance(code, str) else (code, said.out + said.err)

    return speed


@campaign.only_then
def test_a_commit_is_measured_beside_this_checkout_and_a_plain_loop(speed, tmp_path, root):
    """Table, numbers and picture of one call: most of its time is the start of processes."""
    head = commit(root)
    against = ("--against", "HEAD") if head else ()
    contenders = ("--contenders", "plain-1", "flfast")
    words = ("--quick", "--workloads", "W2", *contenders, *against)
    code, said = speed(*words, "--output", str(tmp_path))
    assert code == 0, said
    (picture,) = tmp_path.glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    result = json.loads(picture.with_suffix(".json").read_text())
    assert result["machine"]["cores"] >= 1
    if head:
        before, now = result["checkouts"]
        assert now == ""
        assert f"flfast@{before} | flfast |" in said
        assert {f"flfast@{before}", "flfast"} < result["workloads"][0]["measured"].keys()
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
        (("--contenders", "pfllib"), "--pfllib-code names a checkout of PFLlib"),
    ],
)
def test_what_cannot_run_is_said_at_once(speed, options, said):
    code, found = speed(*options)
    assert code
    assert said in found


@pytest.mark.slow
def test_a_failing_contender_ends_the_call_with_what_it_said(speed, tmp_path):
    options = ("--quick", "--workloads", "W2", "--contenders", "eager", "--output", str(tmp_path))
    code, said = speed(*options, "--overrides", "roundz=1")
    assert code == 1
    assert "roundz" in said
    assert not list(tmp_path.iterdir())  # nothing was measured


def test_the_order_of_contenders_rotates():
    order = [(repeat, who) for repeat, who in interleaved(["a", "b", "c"], 2)]
    assert order == [(0, "a"), (0, "b"), (0, "c"), (1, "b"), (1, "c"), (1, "a")]


def test_two_checkouts_take_turns_in_running_first():
    order = [who for _, who in interleaved([("a@x", "a"), ("plain",)], 3)]
    assert order == ["a@x", "a", "plain", "plain", "a", "a@x", "a@x", "a", "plain"]


def test_a_quick_call_repeats_once():
    assert arguments(["--quick", "--repeats", "5"]).repeats == 1
