"""Records of loggers are those of before if loggers refuse, else those of now."""

import pytest

from flfast.output.results.run_files import records_aside

OLD = {"wandb/run/records": "of weeks", "mlflow.db": "old", "notes.txt": "mine"}
NEW = {"wandb/run/records": "begins", "tensorboard/events": "begins"}


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


@pytest.mark.parametrize("kept", [False, True])
def test_records_are_new_ones_unless_loggers_refuse(tmp_path, kept):
    write(tmp_path, OLD)
    with pytest.raises(ConnectionError), records_aside(tmp_path, kept=kept):
        write(tmp_path, NEW)
        raise ConnectionError
    assert files(tmp_path) == OLD
    with records_aside(tmp_path, kept=kept):
        write(tmp_path, NEW)
    assert files(tmp_path) == {**(OLD if kept else {"notes.txt": "mine"}), **NEW}
