"""What is no file is refused, and nothing is written through a link."""

import os
import socket

import pytest

from flfast.state.regular_file import make_folder, opener, read_file, replacing


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


NO_FILES = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a socket": make_socket,
    "a link to a file": lambda path: (path.with_name("there").touch(), path.symlink_to("there")),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("mode", ["r", "w", "a", "a+", "r+"])
def test_only_files_are_opened(kind, mode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    path = (tmp_path / "x").relative_to(tmp_path)
    NO_FILES[kind](path)
    with pytest.raises(OSError, match="x"), open(path, mode, opener=opener):
        pass
    assert not (tmp_path / "nowhere").exists()


def test_a_device_is_no_file():
    with pytest.raises(OSError, match="is no file"), open("/dev/zero", "rb", opener=opener):
        pass


def test_files_are_read_and_made(tmp_path):
    with open(tmp_path / "x", "w", opener=opener) as file:
        file.write("text")
    assert read_file(tmp_path / "x") == b"text"


def test_new_files_replace_links_and_leave_what_they_lead_to(tmp_path):
    (tmp_path / "mine").write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x").symlink_to(tmp_path / "mine")
    (folder / "kept").write_text("kept")
    with replacing(folder) as place:
        (place / "x").write_text("new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (folder / "x").read_text() == "new"
    with pytest.raises(ValueError, match="no"), replacing(folder) as place:
        (place / "x").write_text("newer")
        raise ValueError("no")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "x": "new",
        "kept": "kept",
    }


def test_only_a_folder_that_the_user_names_may_be_a_link(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    make_folder(tmp_path / "link", named=True)
    with pytest.raises(OSError, match="is a link"):
        make_folder(tmp_path / "link", named=False)
    make_folder(tmp_path / "new" / "one", named=False)
    assert (tmp_path / "new" / "one").is_dir()
