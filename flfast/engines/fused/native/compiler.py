"""Compiling our C++ for this machine, once, and loading it. Torch-free until it is loaded."""

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

log = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("kernels.cpp")
_HEADERS = sorted(_SOURCE.parent.glob("*.h"))
COMPILERS = ("c++", "g++", "clang++")


@lru_cache(maxsize=1)
def missing() -> str | None:
    """Load our operators into `torch.ops.flfast`, compiled first if need be.

    Returns:
        Why there are none, or None: no compiler, none that knows the language, no place to write.
    """
    import torch  # a build may run beside this import

    try:
        torch.ops.load_library(str(build()))
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        log.warning("local steps take longer, as our C++ is missing: %s", reason)
        return reason
    return None


def build() -> Path:
    """The library for this machine and this torch; compiled by the first process that asks.

    Raises:
        OSError: without a compiler, or a folder to write to.
        RuntimeError: with what the compiler says.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise OSError(f"no C++ compiler among {', '.join(COMPILERS)}")
    command = _command(compiler)
    folder = cache_folder()
    target = folder / f"kernels-{_fingerprint(command)}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _compile(command, target)
    return target


def _command(compiler: str) -> list[str]:
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch = Path(spec.origin).parent
    headers = [torch / "include", torch / "include" / "torch" / "csrc" / "api" / "include"]
    return [
        compiler,
        *("-O3", "-march=native", "-std=c++20", "-shared", "-fPIC"),
        *(f"-I{folder}" for folder in headers),
        str(_SOURCE),
        *(f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu"),
    ]


def _compile(command: list[str], target: Path) -> None:
    start = time.perf_counter()
    # A build that is killed leaves nothing under the name.
    part = target.with_suffix(f".{os.getpid()}")
    done = subprocess.run([*command, "-o", str(part)], capture_output=True, text=True, check=False)
    if done.returncode:
        problems = [line for line in done.stderr.splitlines() if "error" in line]
        raise RuntimeError(f"{command[0]}: {next(iter(problems), 'failed')}")
    part.replace(target)
    log.info("compiled C++ for this machine: %.1f s", time.perf_counter() - start)


def cache_folder() -> Path:
    """Where what is compiled lies: the user's cache, else a folder for temporary files."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flfast"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        cache = Path(tempfile.gettempdir()) / f"flfast-{os.getuid()}"
        cache.mkdir(mode=0o700, exist_ok=True)
    return cache


def _fingerprint(command: list[str]) -> str:
    """Of all that decides on the library: source, compiler, torch, processor."""
    compiler = subprocess.run(
        [command[0], "-march=native", "-E", "-dM", "-x", "c++", os.devnull],
        capture_output=True,
        check=False,
    ).stdout
    parts = [path.read_bytes() for path in (_SOURCE, *_HEADERS)]
    parts += [" ".join(command).encode(), compiler]
    parts += [version("torch").encode(), platform.machine().encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
