"""Kernels are compiled once for a machine, and their absence has a reason."""

import logging
import multiprocessing
import os
import tempfile

import pytest

from flfast.state.native.compiler import build, cache_folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "flfast"


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """Put a compiler of these lines before all others."""

    def compiler(*lines):
        script = tmp_path / "c++"
        script.write_text("\n".join(["#!/bin/sh", *lines]))
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return compiler


def test_only_the_first_process_compiles(cache, compiler, tmp_path):
    """With a slow compiler that counts; `test_kernels.py` takes the real one's library."""
    count = f"echo once >> {tmp_path / 'calls'}"
    compiler(
        'case "$1" in -march=*) exit ;; esac', count, "sleep 1", "shift $(($# - 1))", "echo > $1"
    )
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=build) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert build().exists()
    assert (tmp_path / "calls").read_text() == "once\n"
    assert sorted(path.name for path in cache.iterdir()) == sorted([build().name, "lock"])


@pytest.mark.usefixtures("cache")
def test_kernels_of_another_processor_are_another_library(compiler, monkeypatch, tmp_path):
    compiler(f'echo "$*" >> {tmp_path / "calls"}', 'shift $(($# - 1)); echo > "$1"')
    found = []
    for march in ("", "x86-64", "x86-64-v3"):
        monkeypatch.setenv("FLFAST_MARCH", march)
        found.append(build())
        last = (tmp_path / "calls").read_text().splitlines()[-1]
        assert f"-march={march or 'native'} " in last
    assert len(set(found)) == 3


@pytest.mark.usefixtures("cache")
def test_a_line_says_so_before_the_compiler_starts(compiler, caplog, tmp_path):
    said = tmp_path / "said"
    compiler(
        '[ "$1" = -march=native ] && exit',
        f"cp {said} {said}.then",
        "shift $(($# - 1))",
        "echo > $1",
    )
    handler = logging.FileHandler(said)
    logging.getLogger().addHandler(handler)
    try:
        with caplog.at_level("INFO"):
            build()
            build()
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    assert "compiling C++ for this machine" in said.with_suffix(".then").read_text()
    assert sum("compiling" in line for line in caplog.messages) == 1


@pytest.mark.usefixtures("cache")
def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match=r"no C\+\+ compiler among c\+\+, g\+\+, clang\+\+"):
        build()


def test_a_compiler_that_fails(cache, compiler):
    compiler("echo 'kernels.cpp:1: error: no' >&2", "exit 1")
    with pytest.raises(RuntimeError, match=r"c\+\+: kernels.cpp:1: error: no"):
        build()
    assert not list(cache.glob("kernels-*"))


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    """Leave only the temporary folder: a file is in the way of the user's cache."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"flfast-{os.getuid()}"


def test_without_a_cache_the_temporary_folder_is_used(temporary):
    assert cache_folder() == temporary
    assert temporary.stat().st_mode & 0o777 == 0o700


def test_a_temporary_folder_that_others_may_change_is_refused(temporary):
    temporary.mkdir()
    temporary.chmod(0o777)
    with pytest.raises(OSError, match="others may write there"):
        cache_folder()


def test_a_link_in_place_of_the_temporary_folder_is_refused(temporary, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    temporary.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="others may write there"):
        cache_folder()
