"""Kernels are compiled once for a machine, and their absence has a reason."""

import logging
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile

import pytest

from flfast.state.native import compiler as module
from flfast.state.native.compiler import LEVELS, cache_folder, compiled, library_name, packed


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
    processes = [fork.Process(target=compiled) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert compiled().exists()
    assert (tmp_path / "calls").read_text() == "once\n"
    assert sorted(path.name for path in cache.iterdir()) == sorted([compiled().name, "lock"])


@pytest.mark.usefixtures("cache")
def test_kernels_of_another_processor_are_another_library(compiler, monkeypatch, tmp_path):
    compiler(f'echo "$*" >> {tmp_path / "calls"}', 'shift $(($# - 1)); echo > "$1"')
    found = []
    for march in ("", "x86-64", "x86-64-v3"):
        monkeypatch.setenv("FLFAST_MARCH", march)
        found.append(compiled())
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
            compiled()
            compiled()
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    assert "compiling C++ for this machine" in said.with_suffix(".then").read_text()
    assert sum("compiling" in line for line in caplog.messages) == 1


@pytest.mark.usefixtures("cache")
def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match=r"no C\+\+ compiler among c\+\+, g\+\+, clang\+\+"):
        compiled()


def test_a_compiler_that_fails(cache, compiler):
    compiler("echo 'kernels.cpp:1: error: no' >&2", "exit 1")
    with pytest.raises(RuntimeError, match=r"c\+\+: kernels.cpp:1: error: no"):
        compiled()
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


V3 = "fpu avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.fixture
def wheel(monkeypatch, tmp_path):
    """An installed wheel with libraries for torch 2.9, on a processor with these flags."""

    def wheel(flags, *, torch="2.9.1+cpu", machine="x86_64", march=""):
        (tmp_path / "cpuinfo").write_text(
            f"processor : 0\nflags\t\t: {flags}\n\nflags\t\t: none\n"
        )
        for level in LEVELS.get(machine, ()):
            (tmp_path / library_name("2.9", level)).touch()
        monkeypatch.setattr(module, "_SOURCE", tmp_path / "kernels.cpp")
        monkeypatch.setattr(module, "_CPUINFO", tmp_path / "cpuinfo")
        monkeypatch.setattr(module, "version", {"torch": torch}.get)
        monkeypatch.setattr(module.platform, "machine", lambda: machine)
        monkeypatch.setenv("FLFAST_MARCH", march)
        return packed() and packed().stem.removeprefix("kernels-2.9-")

    return wheel


def test_a_wheel_has_a_library_for_each_processor(wheel):
    assert wheel(V4) == "x86-64-v4"
    assert wheel(V4.replace("avx512cd ", "")) == "x86-64-v3"
    assert wheel(V3) == "x86-64-v3"
    assert wheel(V4.replace("fma ", "")) == "x86-64"  # as a virtual machine may hide it
    assert wheel("fpu sse2") == "x86-64"
    assert wheel("", machine="aarch64") == "armv8-a"
    assert wheel(V4, machine="riscv64") is None


def test_another_torch_than_the_wheel_knows_has_no_library(wheel):
    assert wheel(V4, torch="2.9.0") == "x86-64-v4"
    for other in ("2.10.0", "2.9.0a0+gitb3fe8d0", "2.9.0.dev20250901", "2.9.0rc1", "3.0.0"):
        assert wheel(V4, torch=other) is None


def test_the_variable_names_a_library_of_the_wheel_or_compiles(wheel):
    assert wheel(V4, march="x86-64-v3") == "x86-64-v3"
    assert wheel(V3, march="x86-64-v4") == "x86-64-v4"
    assert wheel(V4, march="native") is None
    assert wheel(V4, march="znver4") is None


@pytest.mark.usefixtures("kernels")
def test_a_library_that_does_not_load_is_compiled_instead(wheel, monkeypatch, caplog):
    library = module.loaded()
    assert wheel(V4) == "x86-64-v4"  # an empty file
    monkeypatch.setattr(module, "compiled", lambda: library)
    assert module.missing.__wrapped__() is None
    assert "kernels-2.9-x86-64-v4.so does not fit this torch" in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("level", LEVELS.get(platform.machine(), ()))
def test_the_kernels_of_every_level_give_the_numbers_of_eager(level, root):
    """The library is that of a wheel: the same source and flags."""
    if level not in module.supported():
        pytest.skip("not of this processor")
    tests = ["tests/state/native/test_kernels.py", "tests/engines/test_invariance.py"]
    options = ["-p", "no:cacheprovider", "-m", "not slow"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        env={**os.environ, "FLFAST_MARCH": level},
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    assert done.returncode == 0, done.stdout
