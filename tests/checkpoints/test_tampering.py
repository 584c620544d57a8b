"""A file of a run is changed, then the run is resumed: the same numbers, or one clear error."""

import re
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from campaign import examples
from hypothesis import given
from hypothesis import strategies as st
from processes import Command
from tables import timeless

from flfast import train

# Large batches: these tests are about files, and local steps would take most of the time.
RUN = (
    *("experiment=quick", "model.hidden=[16]", "batch_size=100", "callbacks=files"),
    *("checkpoint.every=1", "eval_every=3"),
    *("algorithm=ditto", "client_states=disk", "callbacks.curves=null"),
    *("callbacks.partition_report=null", "hydra.run.dir=run"),
)
# The fused engine takes longer to start; what it decides is in the checkpoints of one rank.
WAYS = {
    "eager": ("trainer.devices=1", "engine=eager"),
    "auto": ("trainer.devices=1", "engine=auto"),
    "ranks": ("strategy=ddp", "trainer.devices=2", "engine=eager"),
}
HUGE = ["1000000000000", "9" * 40, "-1", "1e400", "NaN", "null", '"text"', "[]"]


def ended(place, *words):
    """(exit code, text of stderr) of the command in a folder."""
    command = Command(train.main, (*RUN, *words), place, {})
    try:
        return command.end(timeout=90)
    finally:
        command.kill()


@pytest.fixture(scope="module")
def other(request, tmp_path_factory):
    """Folder with a run of 3 rounds with another seed."""
    request.getfixturevalue("ran_once")
    folder = tmp_path_factory.mktemp("other")
    assert ended(folder, *WAYS["eager"], "rounds=3", "seed=1")[0] == 0
    return folder / "run"


@pytest.fixture(scope="module", params=WAYS)
def runs(request, other, tmp_path_factory):
    """Folders with a run of 3 rounds, another run, and the first one after 5 rounds."""
    words = WAYS[request.param]
    run, whole = (tmp_path_factory.mktemp(name) / "run" for name in ("run", "whole"))
    assert ended(run.parent, *words, "rounds=3")[0] == 0
    shutil.copytree(run, whole)
    assert ended(whole.parent, *words, "rounds=5", "resume=auto")[0] == 0
    return words, (run, other, whole)


def changed(data, content, others):
    """Other bytes for a file."""
    kind = data.draw(st.sampled_from(["cut", "bit", "bytes", "other", "number", "longer"]))
    place = data.draw(st.integers(0, max(len(content) - 1, 0)))
    if kind == "cut":
        return content[:place]
    if kind == "bit" and content:
        return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]
    if kind == "bytes":
        return content[:place] + b"\xff\xfe\x00\xc3" * 4 + content[place + 16 :]
    if kind == "other":
        return data.draw(st.sampled_from(others)).read_bytes()
    if kind == "number":
        numbers = [match.span() for match in re.finditer(rb"\d+(\.\d+)?", content[:100_000])]
        start, stop = data.draw(st.sampled_from(numbers)) if numbers else (0, 0)
        return content[:start] + data.draw(st.sampled_from(HUGE)).encode() + content[stop:]
    return content + content[place:]


def tamper(data, path, others):
    """Change a file, or what is in its place."""
    content, kind = path.read_bytes(), data.draw(st.sampled_from(["content"] * 7 + ["place"]))
    path.unlink()
    if kind == "content":
        path.write_bytes(changed(data, content, others))
        return
    put = data.draw(st.sampled_from(["nothing", "folder", "dangling link"]))
    if put == "folder":
        path.mkdir()
    elif put == "dangling link":
        path.symlink_to(path.parent / "gone")


@pytest.mark.slow
@given(st.data())
@examples(3)
def test_a_tampered_run_gives_the_same_numbers_or_one_clear_error(runs, data):
    words, (run, other, whole) = runs
    others = sorted(
        path for folder in (run, other) for path in folder.rglob("*") if path.is_file()
    )
    names = sorted(str(path.relative_to(run)) for path in others if path.is_relative_to(run))
    name = data.draw(st.sampled_from(names))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        shutil.copytree(run, folder)
        tamper(data, folder / name, others)
        code, said = ended(Path(place), *words, "rounds=5", "resume=auto")
        assert "Traceback" not in said
        if code:
            assert code == 2
            assert Path(name).name in said or str(folder) in said or "checkpoint" in said
            return
        assert timeless(folder) == timeless(whole)
        if name != "clients.csv":
            assert (folder / "clients.csv").read_text() == (whole / "clients.csv").read_text()
        for path in (*whole.glob("*.pt"), *whole.glob("personal/*.pt")):
            assert same(folder / path.relative_to(whole), path)
        (newest,) = whole.glob("checkpoints/round-000005")
        for path in newest.glob("clients-*.pt"):
            assert same(folder / path.relative_to(whole), path)


def same(left, right):
    """Whether two files hold the same tensors."""
    left, right = (torch.load(path, weights_only=True) for path in (left, right))
    return equal(left, right)


def equal(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right
