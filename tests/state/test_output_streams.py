"""Screens that fail: every command goes on, and its files are those of a command with a screen."""

import io
import logging
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from sampling import others_slow

from flfast import conformance, doctor, evaluate, export, report, train, watch
from flfast.commands.doctor import examination
from flfast.state.output_streams import output_is_read, surviving_output

QUICK = ("experiment=quick", "rounds=1", "trainer.devices=1", "engine=eager", "batch_size=50")
COMMANDS = {
    "conformance": (conformance.main, ["--help"]),
    "doctor": (doctor.main, ["{own}"]),
    "evaluate": (evaluate.main, ["run={run}", "output={own}"]),
    "export": (export.main, ["--help"]),
    "report": (report.main, ["{run}", "output={own}"]),
    "train": (
        train.main,
        [*QUICK, "hydra.run.dir={own}"],
    ),
    "watch": (watch.main, ["{run}", "--once"]),
}

WITHOUT = [*product(sorted(COMMANDS), ("pipe", "full"))]
# Of commands that take a while, each with one of both.
FAST = [case for case in WITHOUT if case not in {("train", "full"), ("evaluate", "pipe")}]

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")


@pytest.fixture
def broken(request):
    """A text file that fails when it is flushed: a pipe without a reader, or a full disk."""
    if request.param == "full":
        file = Path("/dev/full").open("w")  # noqa: SIM115 - closed below
    else:
        reading, writing = os.pipe()
        os.close(reading)
        file = os.fdopen(writing, "w")
    with file:
        yield file


def write_to_both(failing):
    """Write to both streams, one of which fails."""
    with surviving_output():
        stream = getattr(sys, failing)
        handler = logging.StreamHandler(stream)
        assert output_is_read()
        for _ in range(3):
            stream.write("x" * 100_000)
            stream.buffer.write(b"bytes")
            stream.flush()
            handler.handle(logging.makeLogRecord({"msg": "a line"}))
        assert output_is_read() == (failing == "stderr")
        sys.stdout.write("on stdout\n")


@needs_full
@pytest.mark.parametrize("broken", ["pipe", "full"], indirect=True)
@pytest.mark.parametrize("failing", ["stdout", "stderr"])
def test_whatever_writes_goes_on_after_a_stream_has_failed(monkeypatch, tmp_path, broken, failing):
    other = {"stdout": "stderr", "stderr": "stdout"}[failing]
    with (tmp_path / "left").open("w+") as left, monkeypatch.context() as patch:
        patch.setattr(sys, failing, broken)
        patch.setattr(sys, other, left)
        write_to_both(failing)
        assert getattr(sys, failing) is broken
        left.seek(0)
        found = left.read()
    full = "flfast: stdout: No space left on device; output is missing there\n"
    of_stdout = full if broken.name == "/dev/full" else ""
    # What is wrong with stderr has no place to be said.
    assert found == (of_stdout if failing == "stdout" else "on stdout\n")


def test_streams_that_work_get_everything_in_order(monkeypatch, tmp_path):
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        sys.stdout.write("1 ")
        with surviving_output(), surviving_output():
            assert isinstance(sys.stdout, io.TextIOWrapper)
            sys.stdout.write("2 ä ")
        sys.stdout.write("3")
    assert (tmp_path / "out").read_text() == "1 2 ä 3"


def test_streams_that_are_no_files_are_left_alone(monkeypatch):
    own = io.StringIO()
    monkeypatch.setattr(sys, "stdout", own)
    monkeypatch.setattr(sys, "stderr", None)
    with surviving_output():
        assert sys.stdout is own
        assert sys.stderr is None


def test_a_slow_reader_of_a_pipe_that_does_not_block_is_waited_for(monkeypatch):
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    size = 300_000
    reader = subprocess.Popen([*("wc", "-c")], stdin=reading, stdout=subprocess.PIPE)
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with surviving_output():
            sys.stdout.write("x" * size)
    assert int(reader.communicate()[0]) == size


@pytest.mark.slow
def test_a_run_on_two_ranks_writes_its_files_though_its_reader_ends_after_a_line(tmp_path):
    words = "experiment=quick rounds=2 'model.hidden=[8]' hydra.run.dir=run trainer.devices=2"
    line = f"{sys.executable} -m flfast.train {words} | head -n 1; echo ${{PIPESTATUS[@]}}"
    ended = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[-1] == "0 0", ended.stderr
    assert "Error" not in ended.stderr
    assert_complete(tmp_path / "run", rounds=2)


def assert_complete(run, *, rounds):
    files = {path.name for path in run.iterdir()}
    assert files >= {"model.pt", "metrics.csv", "curves.png", "clients.csv", "report.html"}
    assert (run / "metrics.csv").read_text().count("\n") == rounds + 2


@needs_full
@pytest.mark.parametrize(("command", "broken"), others_slow(WITHOUT, FAST), indirect=["broken"])
def test_every_command_goes_on_without_a_screen(
    monkeypatch, capfd, tmp_path, ran_once, broken, command
):
    """The self-check has one result here, since it takes a minute otherwise."""
    check = examination.Check("a check", lambda: (True, "fine"))
    monkeypatch.setattr(examination, "checks", lambda folder, command: [check])
    main, words = COMMANDS[command]
    words = [word.format(run=ran_once, own=tmp_path / "own") for word in words]
    monkeypatch.setattr(sys, "argv", [command, *words])
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", broken)
        try:
            code = main(words) if command == "report" else main()
        except SystemExit as ended:
            code = ended.code
    assert not code
    said = capfd.readouterr().err
    assert ("stdout: No space left on device" in said) == (broken.name == "/dev/full")
    if command == "train":
        assert_complete(tmp_path / "own", rounds=1)
