"""Records of loggers are those of before or those of now, at whatever moment a process dies."""

import sys
from contextlib import suppress
from itertools import count

import pytest

from flfast.output.results.run_files import records_aside

OLD = {"wandb/run/records": "of weeks", "mlflow.db": "old", "notes.txt": "mine"}
NEW = {"wandb/run/records": "begins", "tensorboard/events": "begins"}

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.copyfile", "open"}
"""Audit events of calls that change a folder, or may."""


class Death(BaseException):
    """Nothing of a process runs after its death: whatever it tries then raises this, too."""


class Mortal:
    """Lets a process die before one of its changes of a folder."""

    def __init__(self):
        self.left = None
        sys.addaudithook(self._watch)

    def _watch(self, event, _):
        if self.left is not None and event in CHANGES:
            self.left -= 1
            if self.left < 0:
                raise Death


MORTAL = Mortal()  # Python cannot take a hook away


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def write(folder, contents):
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def command(folder, *, kept, refused, dies=None):
    """Make the new records; dies before a change, or is refused after making them."""
    MORTAL.left = dies
    try:
        with suppress(ConnectionError), records_aside(folder, kept=kept):
            write(folder, NEW)
            if refused:
                raise ConnectionError
    except Death:
        return False
    finally:
        MORTAL.left = None
    return True


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("refused", [False, True])
def test_a_death_at_any_moment_leaves_old_or_new_records(tmp_path, kept, refused):
    new = {**(OLD if kept else {"notes.txt": "mine"}), **NEW}
    seen = []
    for dies in count():
        folder = tmp_path / str(dies)
        write(folder, OLD)
        lived = command(folder, kept=kept, refused=refused, dies=dies)
        command(folder, kept=True, refused=True)  # the next one finds what is there, and leaves it
        assert files(folder) in (OLD, new)
        seen.append(files(folder) == new)
        if lived:
            break
    assert seen == sorted(seen)  # once the new ones are complete, they stay
    assert seen[-1] is not refused
    assert len(seen) > 8
