"""Ranks do not depend on what else their launcher's process did, or does; real processes."""

import gc
import importlib
import os
import runpy
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from sampling import others_slow

from flfast.distributed.launcher import RankDiedError, can_fork, on_ranks
from flfast.distributed.process_group import enter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ranks are never forked")


def threads_of(pid):
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_the_launcher_has_no_thread_of_its_own_while_it_forks(in_world):
    """A thread of TorchElastic's store resolved names while the next rank was forked.

    That rank waited for ever for the lock of the C library's resolver.
    """
    before = threads_of(os.getpid())
    found = in_world(3, lambda world: threads_of(os.getppid()))
    assert max(found.values()) <= before


def entered(total):
    """Enter the world of the launcher, and add the ranks."""
    enter("gloo", timeout_s=20)
    ranks = torch.tensor([float(os.environ["RANK"])])
    torch.distributed.all_reduce(ranks)
    torch.distributed.destroy_process_group()
    assert float(ranks) == total


FOLDERS = ["a b", "100%20", "'\"", "ä?x=y#z&"]


@pytest.mark.parametrize("name", others_slow(FOLDERS, FOLDERS[2:]))
def test_ranks_meet_in_a_temporary_folder_of_any_name(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
    on_ranks(2, entered, 1.0, max_restarts=0)


class Store:
    """Garbage at once; notes who destroys it.

    A real store waits for its thread, which is not in the rank, and hangs or crashes.
    """

    def __init__(self, notes):
        self.notes, self.cycle = notes, self

    def __del__(self):
        (self.notes / str(os.getpid())).touch()


def test_a_rank_destroys_nothing_that_it_inherited(tmp_path):
    Store(tmp_path)
    on_ranks(2, gc.collect)
    assert not list(tmp_path.iterdir())
    gc.collect()
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())]


SLOW = """
import os, time
from pathlib import Path

Path(__file__).with_name("begun").touch()
while os.getpid() == {pid} and not Path(__file__).with_name("go").exists():
    time.sleep(0.01)
"""


def test_a_rank_does_not_wait_for_a_lock_of_another_thread(tmp_path, monkeypatch):
    """The lock is that of a module which the thread is importing, and the rank imports it, too."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imported_slowly.py").write_text(SLOW.format(pid=os.getpid()))
    thread = threading.Thread(target=importlib.import_module, args=("imported_slowly",))
    thread.start()
    try:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        assert not can_fork()
        assert on_ranks(2, eval, "__import__('imported_slowly').__name__") == dict.fromkeys(
            (0, 1), "imported_slowly"
        )
    finally:
        (tmp_path / "go").touch()
        thread.join()
        sys.modules.pop("imported_slowly", None)
    assert can_fork()


def test_a_rank_that_fails_is_one_line_after_all_attempts(tmp_path):
    def fail(folder):
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        (folder / f"{attempt}-{os.environ['RANK']}").touch()
        if attempt == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ["RANK"] == "1":
            raise IndexError("of\nnothing")
        time.sleep(600)

    with pytest.raises(RankDiedError, match=r"^rank 1 of 2 died: nothing$"):
        on_ranks(2, fail, tmp_path, max_restarts=1)
    assert {path.name for path in tmp_path.iterdir()} >= {"1-0", "1-1"}
    with pytest.raises(RankDiedError, match=r"rank . of 2 died: Signal 9; what it said is above"):
        on_ranks(2, fail, tmp_path)


# Importing is computing without a break: no thread of the rank gets a turn.
IMPORTING = """
import os, threading
from pathlib import Path

if __name__ == "__mp_main__":
    Path("importing.new").write_text(str(os.getpid()))
    Path("importing.new").rename("importing")
    sum(range(10**12))
if __name__ == "__main__":
    from flfast.distributed.launcher import on_ranks
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    on_ranks(1, os.getpid)
"""


def test_a_spawned_rank_that_still_imports_ends_with_its_launcher(start, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(IMPORTING)
    launcher = start(partial(runpy.run_path, str(script), run_name="__main__"))
    note = launcher.folder / "importing"
    for _ in range(1200):
        if note.exists():
            break
        time.sleep(0.05)
    rank = int(note.read_text())
    launcher.kill()
    try:
        for _ in range(400):
            if not alive(rank):
                return
            time.sleep(0.05)
        raise AssertionError("the rank runs on")
    finally:
        if alive(rank):
            os.kill(rank, signal.SIGKILL)


def alive(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_results_outlive_their_ranks():
    """Tensors are sent by value: a rank ends before its launcher reads them."""
    found = on_ranks(3, lambda: [torch.full((40,), float(i)) for i in range(40)])
    for tensors in found.values():
        assert [float(tensor.sum()) for tensor in tensors] == [40.0 * i for i in range(40)]
