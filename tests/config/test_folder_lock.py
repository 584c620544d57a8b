"""The lock of a folder, and what it takes back."""

import logging
import multiprocessing
import threading

import pytest

from flfast.config import folder_lock
from flfast.config.errors import ConfigError
from flfast.config.folder_lock import SETTINGS, FolderLock
from flfast.output.results.outcome import is_locked


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(folder_lock, "PATIENCE_S", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_lock_ends_with_its_holders(tmp_path):
    """A forked process holds the lock of its parent, too."""
    first = FolderLock(tmp_path, setting="folder=x")
    go_on = multiprocessing.get_context("fork").Event()
    child = multiprocessing.get_context("fork").Process(target=go_on.wait)
    child.start()
    with pytest.raises(ConfigError, match="this process writes there"):
        FolderLock(tmp_path, setting="folder=x")
    first._file.close()  # as if this process had died
    with pytest.raises(ConfigError, match="writes there"):
        FolderLock(tmp_path, setting="folder=x")
    go_on.set()
    child.join()
    FolderLock(tmp_path, setting="folder=x").release()


def test_a_run_waits_for_processes_that_are_about_to_end(tmp_path):
    first = FolderLock(tmp_path, setting="folder=x")
    threading.Timer(0.3, first.release).start()
    FolderLock(tmp_path, setting="folder=x").release()


@pytest.mark.parametrize("accepted", [False, True])
def test_only_a_run_that_is_accepted_leaves_lines_and_folders(tmp_path, accepted):
    folder = tmp_path / "day" / "run"
    lock = FolderLock(folder, setting="folder=x")
    (folder / "train.log").write_text("a line")
    if accepted:
        (folder / SETTINGS).parent.mkdir()
        (folder / SETTINGS).touch()
    lock.release()
    assert (tmp_path / "day").exists() is accepted
    (tmp_path / "day" / "run").mkdir(parents=True, exist_ok=True)
    (folder / "train.log").write_text("before")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    lock = FolderLock(folder, setting="folder=x")
    handler = logging.FileHandler(folder / "train.log", delay=True)
    logging.getLogger().addHandler(handler)
    logging.getLogger().warning("while the command is checked")
    (folder / "output.log").touch()
    lock.release()
    logging.getLogger().warning("afterwards")
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before


def test_no_line_follows_once_a_folder_is_released(tmp_path):
    """A library that configures logging may have closed the file, and a line opened it again."""
    lock = FolderLock(tmp_path, setting="folder=x")
    (tmp_path / SETTINGS).parent.mkdir()
    (tmp_path / SETTINGS).touch()
    handler = logging.FileHandler(tmp_path / "train.log")
    logging.getLogger().addHandler(handler)
    handler.close()
    logging.getLogger().warning("during the run")
    lock.release()
    logging.getLogger().warning("afterwards")
    assert (tmp_path / "train.log").read_text() == "during the run\n"


def test_two_that_wait_for_a_new_folder_do_not_share_it(tmp_path):
    """The first one takes back the folder, which the second one then makes again."""
    folder = tmp_path / "run"
    first = FolderLock(folder, setting="folder=x")
    threading.Timer(0.3, first.release).start()
    second = FolderLock(folder, setting="folder=x")
    assert is_locked(folder)
    second.release()
    assert not folder.exists()
