"""Kernels are compiled once for a machine, and their absence has a reason."""

import os
import subprocess
import sys

import pytest

from flfast.lit.fused.native.build import build


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "flfast"


@pytest.mark.slow
def test_only_the_first_process_compiles(cache):
    command = [sys.executable, "-c", "from flfast.lit.fused.native.build import build; build()"]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    (library,) = cache.glob("*.so")
    written = library.stat().st_mtime_ns
    assert build() == library
    assert library.stat().st_mtime_ns == written
    assert sorted(path.name for path in cache.iterdir()) == sorted([library.name, "lock"])


@pytest.mark.usefixtures("cache")
def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match=r"no C\+\+ compiler among c\+\+, g\+\+, clang\+\+"):
        build()


def test_a_compiler_that_fails(cache, monkeypatch, tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'kernels.cpp:1: error: no' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(RuntimeError, match=r"c\+\+: kernels.cpp:1: error: no"):
        build()
    assert not list(cache.glob("kernels-*"))
