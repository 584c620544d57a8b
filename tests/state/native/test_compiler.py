"""Kernels are compiled once for a machine, and their absence has a reason."""

import ctypes
import fcntl
import logging
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time

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


FORK = multiprocessing.get_context("fork")
COMPILES = 'case "$1" in -march=*) exit ;; esac'
"""First line of a compiler whose others are for compiling; without it, the macros are asked."""
WRITES = 'shift $(($# - 1)); echo > "$1"'


def test_only_the_first_process_compiles(cache, compiler, tmp_path):
    """With a slow compiler that counts; `test_kernels.py` takes the real one's library."""
    compiler(COMPILES, f"echo once >> {tmp_path / 'calls'}", "sleep 1", WRITES)
    processes = [FORK.Process(target=compiled) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (tmp_path / "calls").read_text() == "once\n"
    assert [path.name for path in cache.iterdir()] == [compiled().name]


@pytest.fixture
def busy(request, compiler, tmp_path):
    """A process that compiles for ten seconds; it has begun."""
    request.getfixturevalue("cache")
    compiler(COMPILES, f"echo once >> {tmp_path / 'calls'}", "sleep 10", WRITES)
    process = FORK.Process(target=compiled)
    process.start()
    while not (tmp_path / "calls").exists():
        time.sleep(0.01)
    compiler(COMPILES, WRITES)
    yield process
    process.kill()
    process.join()


def test_a_wait_has_a_reason_and_an_end(busy, caplog, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    with caplog.at_level("INFO"):
        start = time.monotonic()
        assert compiled().exists()
        assert time.monotonic() - start < 5
    waits = f"waiting for process {busy.pid} on {platform.node()}, which has compiled C++ for 0 s"
    assert caplog.messages[:2] == [
        waits,
        f"process {busy.pid} on {platform.node()} still compiles C++ after 0 s: not waiting",
    ]
    assert busy.is_alive()


def test_a_library_that_is_there_needs_no_lock(busy, monkeypatch):
    """Neither of one that another process compiles, nor of its own."""
    monkeypatch.setenv("FLFAST_MARCH", "x86-64")
    start = time.monotonic()
    library = compiled()  # of other flags than those of the process
    lock = library.with_suffix(".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert compiled() == library
    assert time.monotonic() - start < 5
    assert busy.is_alive()
    lock.close()


def test_a_killed_process_is_not_waited_for(busy, caplog):
    """Its compiler may still run."""
    busy.kill()
    busy.join()
    with caplog.at_level("INFO"):
        assert compiled().exists()
    assert "waiting" not in caplog.text


def test_what_nobody_used_for_a_month_is_removed(cache, compiler):
    compiler(COMPILES, WRITES)
    cache.mkdir()
    names = ("kernels-used.so", "kernels-old.so", "kernels-old.12-34", "strict-device-1.so")
    for name in names:
        (cache / name).touch()
        os.utime(cache / name, (0, time.time() - (40 if name != names[0] else 20) * 86_400))
    library = compiled()
    left = {path.name for path in cache.iterdir()}
    assert left == {library.name, "kernels-used.so", "strict-device-1.so"}
    os.utime(library, (0, 0))
    assert compiled() == library
    assert time.time() - library.stat().st_mtime < 60


def test_a_cache_that_is_read_only(compiler, monkeypatch, tmp_path):
    """Its libraries are used, and others are compiled elsewhere."""
    compiler(COMPILES, WRITES)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of a user"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    library = compiled()
    library.parent.chmod(0o555)
    ours, theirs = FORK.Pipe()

    def without_privileges():
        if os.getuid() == 0:  # nothing is closed to root
            header, none = (ctypes.c_uint32 * 2)(0x2008_0522, 0), (ctypes.c_uint32 * 6)()
            assert ctypes.CDLL(None).capset(header, none) == 0
        theirs.send(compiled())
        os.environ["FLFAST_MARCH"] = "x86-64"
        theirs.send(compiled())

    process = FORK.Process(target=without_privileges)
    process.start()
    theirs.close()  # so that its end is seen here
    process.join(60)
    assert ours.recv() == library
    assert ours.recv().parent == tmp_path / f"flfast-{os.getuid()}"
    library.parent.chmod(0o755)


def test_places_are_no_part_of_a_library(monkeypatch, compiler, tmp_path):
    """The same content in two places has one fingerprint; any other content has another one."""
    compiler('case "$1" in -march=*) echo "#define V ${V:-1}" ;; esac')
    sources = (module._SOURCE, *module._HEADERS)

    def fingerprint(place, *, march="native", change=None):
        torch = tmp_path / place / "torch"
        (torch / "share" / "cmake" / "Torch").mkdir(parents=True)
        files = {path.name: path.read_text() for path in sources}
        files |= {"torch/version.py": "2.9", "torch/share/cmake/Torch/TorchConfig.cmake": "ABI=1"}
        for name, text in files.items():
            (tmp_path / place / name).write_text(text + "!" * (name == change))
        copies = [tmp_path / place / path.name for path in sources]
        monkeypatch.setattr(module, "_SOURCE", copies[0])
        monkeypatch.setattr(module, "_HEADERS", copies[1:])
        command = module.compile_command(str(tmp_path / "c++"), torch, march)
        return module._fingerprint(command, torch)

    here = fingerprint("here")
    assert fingerprint("there") == here
    changes = [sources[0].name, sources[1].name, "torch/version.py"]
    changes.append("torch/share/cmake/Torch/TorchConfig.cmake")
    found = {here, fingerprint("march", march="x86-64")}
    found |= {fingerprint(f"{num}", change=change) for num, change in enumerate(changes)}
    monkeypatch.setenv("V", "2")
    found.add(fingerprint("compiler"))
    assert len(found) == 2 + len(changes) + 1


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
    assert not list(cache.glob("kernels-*.so"))


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
