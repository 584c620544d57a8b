"""Checkpoint folders: what is written is read, and nothing else is."""

import json
import os
import pickle
import resource
import signal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.checkpoints import files
from flfast.checkpoints.folders import (
    ABOUT,
    FORMAT,
    BrokenCheckpointError,
    checkpoint_dir,
    checkpoint_folders,
    expired_folders,
    find_checkpoints,
    partial_folders,
    read_checkpoint,
)
from flfast.state.tensor_file import write_tensors

ABOUT_IT = {"format": FORMAT, "world_size": 1, "data": "", "config": {}, "sizes": {}}
ABOUT_IT |= {"loggers": {}, "tables": {}}


def write(run_dir, round_idx, *, num=1000):
    """A checkpoint of one file, as `keeper` writes it."""
    final = checkpoint_dir(run_dir, round_idx)
    part = final.with_name(f"{final.name}.part")
    value = {"round": round_idx, "values": torch.full((num,), float(round_idx))}
    write_tensors(part / "server.pt", value)
    write_tensors(part / "clients-0-of-1.pt", {"stacks": []})
    names = ["server.pt", "clients-0-of-1.pt"]
    files.publish(part, final, {**ABOUT_IT, "round": round_idx}, names)
    return final


def test_tensors_numbers_and_text_come_back_as_they_were(tmp_path):
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    value = {"tree": {"w": image, "n": torch.tensor(3)}, "rows": [{"a": 0.1, "b": "x", "c": 2}]}
    write_tensors(tmp_path / "new" / "file.pt", value)
    found = files.read_tensors(tmp_path / "new" / "file.pt")
    assert found["rows"] == value["rows"]
    assert torch.equal(found["tree"]["w"], image)
    assert found["tree"]["w"].stride() == image.stride()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file.pt"]


class Evil:
    def __reduce__(self):
        return os.mkdir, ("/tmp/never-made-by-a-checkpoint",)


def test_a_file_with_code_is_refused_and_not_run(tmp_path):
    torch.save({"server": Evil()}, tmp_path / "zipped.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"server": Evil()}))
    for name in ("zipped.pt", "plain.pt"):
        with pytest.raises(BrokenCheckpointError, match=name):
            files.read_tensors(tmp_path / name)
    assert not os.path.exists("/tmp/never-made-by-a-checkpoint")  # noqa: PTH110


@settings(max_examples=12)
@given(st.data())
def test_a_torn_file_is_found_out(tmp_path_factory, data):
    run_dir = tmp_path_factory.mktemp("run")
    good = write(run_dir, 1)
    torn = write(run_dir, 2)
    path = torn / data.draw(st.sampled_from(["server.pt", ABOUT]))
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(BrokenCheckpointError, match="round-000002"):
        read_checkpoint(torn)
    assert [checkpoint.path for checkpoint in find_checkpoints("auto", run_dir)] == [good]
    with pytest.raises(ValueError, match="round-000002"):
        find_checkpoints(str(torn), run_dir)
    with pytest.raises(ValueError, match="round-000002"):
        find_checkpoints(str(run_dir), run_dir)


@settings(max_examples=8)
@given(at=st.integers(0, 3999))
def test_a_flipped_bit_of_a_tensor_is_found_out(tmp_path_factory, at):
    path = tmp_path_factory.mktemp("run") / "file.pt"
    values = torch.arange(1000.0)
    write_tensors(path, {"values": values})
    content = bytearray(path.read_bytes())
    start = bytes(content).find(values.numpy().tobytes())
    content[start + at] ^= 1
    path.write_bytes(content)
    with pytest.raises(BrokenCheckpointError):
        files.read_tensors(path)


def test_a_file_of_another_checkpoint_is_found_out(tmp_path):
    """It is whole, and as large as the one that was written."""
    first, second = (write(tmp_path, round_idx) for round_idx in (1, 2))
    written = read_checkpoint(second).about["files"]["server.pt"]
    assert written["bytes"] == (first / "server.pt").stat().st_size
    files.read_tensors(second / "server.pt", written=written["digest"])
    with pytest.raises(BrokenCheckpointError, match="not the file that was written"):
        files.read_tensors(first / "server.pt", written=written["digest"])


def test_a_folder_named_after_another_round_is_found_out(tmp_path):
    write(tmp_path, 1).rename(checkpoint_dir(tmp_path, 7))
    with pytest.raises(BrokenCheckpointError, match=r"round-000007: about\.json is of round 1"):
        read_checkpoint(checkpoint_dir(tmp_path, 7))


def test_a_kill_between_any_two_steps_leaves_the_latest_checkpoint_or_the_one_before(tmp_path):
    """Every call of the system that changes the disk is one after which the process may die."""
    write(tmp_path, 1)
    names = []
    for steps in range(100):
        pid = os.fork()
        if pid == 0:
            _die_after(steps)
            write(tmp_path, 2)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        (latest, *_) = find_checkpoints("auto", tmp_path)
        names.append(latest.path.name)
        saved = files.read_tensors(latest.path / "server.pt")
        assert saved["round"] == latest.round_idx
        assert torch.equal(saved["values"], torch.full((1000,), float(latest.round_idx)))
        for path in partial_folders(tmp_path):
            files.remove(path)
        if os.WIFEXITED(status):
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert steps > 5
    assert names[0] == "round-000001"
    assert names[-1] == "round-000002"


def _die_after(steps):
    left = [steps]

    def dying(call):
        def called(*args, **kwargs):
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return call(*args, **kwargs)

        return called

    for name in ("fsync", "rename", "mkdir", "unlink", "open", "rmdir"):
        setattr(os, name, dying(getattr(os, name)))


def test_a_full_disk_is_an_error_that_says_so(tmp_path):
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        try:
            write_tensors(tmp_path / "file.pt", {"values": torch.zeros(100_000)})
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 27, os.strerror(27)
    assert not (tmp_path / "file.pt").exists()


def test_the_newest_ones_stay_and_the_best(tmp_path):
    for round_idx in (1, 2, 3, 10, 1_000_000):
        write(tmp_path, round_idx)
    assert [path.name for path in checkpoint_folders(tmp_path)][:2] == [
        "round-1000000",
        "round-000010",
    ]
    gone = expired_folders(tmp_path, keep_last=2, best=2)
    assert [path.name for path in gone] == ["round-000003", "round-000001"]


def test_a_folder_without_checkpoints_begins_a_run_under_auto_only(tmp_path):
    assert find_checkpoints("auto", tmp_path) == []
    with pytest.raises(ValueError, match=r"resume=.*there is no checkpoint"):
        find_checkpoints(str(tmp_path), tmp_path)


def test_a_checkpoint_of_another_format_is_refused(tmp_path):
    path = write(tmp_path, 1)
    about = json.loads((path / ABOUT).read_text())
    (path / ABOUT).write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(BrokenCheckpointError, match=f"has format 99, this flfast reads {FORMAT}"):
        read_checkpoint(path)
