"""Compiles our C++ once for this machine, and loads it. Imports torch only to load it."""

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from flfast.state.messages import first_line

log = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("kernels.cpp")
_HEADERS = sorted(_SOURCE.parent.glob("*.h"))
COMPILERS = ("c++", "g++", "clang++")
VARIABLE = "FLFAST_MARCH"
"""The compiler's `-march`, such as `x86-64-v3`: kernels for another processor than this one."""


@lru_cache(maxsize=1)
def missing() -> str | None:
    """Load our operators into `torch.ops.flfast`; compile them if this was not done before.

    Returns:
        None if they are loaded, otherwise why not: no compiler, an error of the compiler, or no
        folder to write to.
    """
    import torch  # a build may run beside this import

    try:
        torch.ops.load_library(str(build()))
    except (OSError, RuntimeError) as error:
        reason = first_line(error)
        log.warning("training takes longer, as our C++ is missing: %s", reason)
        return reason
    return None


def build() -> Path:
    """Path of the library for this machine and this torch; compiled by the first process to ask.

    Raises:
        OSError: if there is no compiler, or no folder to write to.
        RuntimeError: if the compiler fails, with its first error.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise OSError(f"no C++ compiler among {', '.join(COMPILERS)}")
    command = _command(compiler)
    folder = cache_folder()
    target = folder / f"kernels-{_fingerprint(command)}.so"
    if not target.exists():  # also said by processes that wait for another one's compiler
        log.info("compiling C++ for this machine, which is done once and takes up to a minute")
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
        *("-O3", _march(), "-std=c++20", "-shared", "-fPIC"),
        *(f"-I{folder}" for folder in headers),
        str(_SOURCE),
        *(f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu"),
    ]


def _march() -> str:
    return f"-march={os.environ.get(VARIABLE) or 'native'}"


def _compile(command: list[str], target: Path) -> None:
    start = time.perf_counter()
    # Renamed when complete, so that a killed build leaves no broken library.
    part = target.with_suffix(f".{os.getpid()}")
    done = subprocess.run([*command, "-o", str(part)], capture_output=True, text=True, check=False)
    if done.returncode:
        problems = [line for line in done.stderr.splitlines() if "error" in line]
        raise RuntimeError(f"{command[0]}: {next(iter(problems), 'failed')}")
    part.replace(target)
    log.info("compiled C++ for this machine: %.1f s", time.perf_counter() - start)


def cache_folder() -> Path:
    """Folder of compiled libraries: in the user's cache, else in the temporary folder.

    Raises:
        OSError: if neither can be written, or another user owns the one in the temporary folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flfast"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        cache = Path(tempfile.gettempdir()) / f"flfast-{os.getuid()}"
        cache.mkdir(mode=0o700, exist_ok=True)
        # Anybody may have made this folder, and we run the code that lies in it.
        found = cache.lstat()
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
            raise OSError(f"{cache}: others may write there") from None
    return cache


def _fingerprint(command: list[str]) -> str:
    """Hash of all that the library depends on: source, compiler, torch, processor."""
    compiler = subprocess.run(
        [command[0], _march(), "-E", "-dM", "-x", "c++", os.devnull],
        capture_output=True,
        check=False,
    ).stdout
    parts = [path.read_bytes() for path in (_SOURCE, *_HEADERS)]
    parts += [" ".join(command).encode(), compiler]
    parts += [version("torch").encode(), platform.machine().encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
