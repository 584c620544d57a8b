"""Loads our C++: the wheel's library, or one that is compiled here once for this machine.

Torch is imported only to load it, and nothing of flfast when this file is: `.ci/kernels.py`, which
compiles libraries for a wheel, reads it where flfast is not installed.
"""

import hashlib
import logging
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("kernels.cpp")
_HEADERS = sorted(_SOURCE.parent.glob("*.h"))
_CPUINFO = Path("/proc/cpuinfo")
COMPILERS = ("c++", "g++", "clang++")
PATIENCE_S = 180.0
"""Seconds to wait for another process that compiles; it may be on a machine that was lost."""
_UNUSED_S = 30 * 86_400.0
"""Seconds without a use after which a library is removed. Processes that loaded it keep it."""
VARIABLE = "FLFAST_MARCH"
"""The compiler's `-march`, such as `x86-64-v3`: kernels for another processor than this one."""
LEVELS = {
    "x86_64": {
        "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
        "x86-64-v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave",
        "x86-64": "",
    },
    "aarch64": {"armv8-a": ""},
}
"""By machine: each `-march` that a wheel has a library for, the fastest first.

A processor has the flags of its level in /proc/cpuinfo, and those of the levels below.
"""


@lru_cache(maxsize=1)
def missing() -> str | None:
    """Load our operators into `torch.ops.flfast`; compile them if this was not done before.

    Returns:
        None if they are loaded, otherwise why not: no compiler, an error of the compiler, or no
        folder to write to.
    """
    import torch  # a build may run beside this import

    from flfast.state.messages import first_line

    library = packed()
    if library:
        try:
            torch.ops.load_library(str(library))
            return None
        except OSError as error:  # a torch that its maker changed, but not its version
            log.warning("%s does not fit this torch: %s", library.name, first_line(error))
    try:
        torch.ops.load_library(str(compiled()))
    except (OSError, RuntimeError) as error:
        reason = first_line(error)
        log.warning("training takes longer, as our C++ is missing: %s", reason)
        return reason
    return None


def loaded() -> Path | None:
    """The library that was loaded: of the wheel, or of the cache."""
    import torch

    libraries = map(Path, torch.ops.loaded_libraries)
    return next((path for path in libraries if path.name.startswith("kernels-")), None)


def packed() -> Path | None:
    """The wheel's library for this torch and this processor, if it has one.

    Only releases of torch count: nightly builds and those of other makers, such as 2.9.0a0, have
    an ABI between two versions.
    """
    release = re.match(r"(\d+\.\d+)\.\d+(?:\+|$)", version("torch"))
    if release is None:
        return None
    libraries = (_SOURCE.with_name(library_name(release[1], level)) for level in supported())
    return next((library for library in libraries if library.exists()), None)


def library_name(torch: str, level: str) -> str:
    """File name of a wheel's library for a minor version of torch, such as `2.9`."""
    return f"kernels-{torch}-{level}.so"


def supported() -> list[str]:
    """Levels that this processor has, the fastest first, or the one that `FLFAST_MARCH` names."""
    levels = LEVELS.get(platform.machine(), {})
    wanted = os.environ.get(VARIABLE)
    if wanted:
        return [wanted] if wanted in levels else []
    text = _CPUINFO.read_text() if _CPUINFO.is_file() else ""
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    lowest_first: list[str] = []
    for level, needed in reversed(levels.items()):
        if not flags.issuperset(needed.split()):
            break
        lowest_first.append(level)
    return lowest_first[::-1]


def compiled() -> Path:
    """Path of the library in a cache; compiled by the first process to ask.

    Raises:
        OSError: if there is no compiler, or no folder to write to.
        RuntimeError: if the compiler fails, with its first error.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise OSError(f"no C++ compiler among {', '.join(COMPILERS)}")
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch = Path(spec.origin).parent
    command = compile_command(compiler, torch, _march())
    name = f"kernels-{_fingerprint(command, torch)}.so"
    for folder in (_user_cache, cache_folder):  # the user's may have the library and be read-only
        target = folder() / name
        if target.exists():
            with suppress(OSError):  # of another user
                os.utime(target)  # the last use
            return target
    with _turn(target):
        if not target.exists():
            _compile(command, target)
    target.with_suffix(".lock").unlink(missing_ok=True)
    for path in target.parent.glob("kernels-*"):  # libraries, and what kills left
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _UNUSED_S:
                path.unlink()
    return target


def _turn(target: Path) -> AbstractContextManager[Any]:
    """The lock of a library, after a wait with an end: it is safe to compile without it, too."""
    import fcntl  # a wheel's library needs no lock

    start, holder = time.monotonic(), ""
    try:
        file = target.with_suffix(".lock").open("a+", encoding="utf-8")
        while not target.exists():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.truncate(0)
                file.write(f"process {os.getpid()} on {platform.node()}")
                file.flush()
                break
            except BlockingIOError:
                pass
            if not holder:
                file.seek(0)
                holder = file.read() or "another process"
                seconds = max(time.time() - os.fstat(file.fileno()).st_mtime, 0)
                log.info("waiting for %s, which has compiled C++ for %.0f s", holder, seconds)
            if time.monotonic() - start > PATIENCE_S:
                log.warning("%s still compiles C++ after %.0f s: not waiting", holder, PATIENCE_S)
                break
            time.sleep(0.1)
    except OSError:  # of another user, or on a disk without locks
        return nullcontext()
    return file


def compile_command(compiler: str, torch: Path, march: str) -> list[str]:
    """Call of the compiler, without `-o FILE`; `torch` is the folder of its package."""
    headers = [torch / "include", torch / "include" / "torch" / "csrc" / "api" / "include"]
    return [
        compiler,
        *("-O3", f"-march={march}", "-std=c++20", "-shared", "-fPIC"),
        *(f"-I{folder}" for folder in headers),
        str(_SOURCE),
        *(f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu"),
    ]


def _march() -> str:
    return os.environ.get(VARIABLE) or "native"


def _compile(command: list[str], target: Path) -> None:
    log.info("compiling C++ for this machine, which is done once and takes up to a minute")
    start = time.perf_counter()
    # Renamed when complete, so that a killed build leaves no broken library.
    part = target.with_suffix(f".{os.getpid()}-{time.time_ns()}")
    done = subprocess.run([*command, "-o", str(part)], capture_output=True, text=True, check=False)
    if done.returncode:
        problems = [line for line in done.stderr.splitlines() if "error" in line]
        raise RuntimeError(f"{command[0]}: {next(iter(problems), 'failed')}")
    part.replace(target)
    log.info("compiled C++ for this machine: %.1f s", time.perf_counter() - start)


def cache_folder() -> Path:
    """Folder for libraries that are compiled: the user's cache, else in the temporary folder.

    Raises:
        OSError: if neither can be written, or another user owns the one in the temporary folder.
    """
    cache = _user_cache()
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK):
            return cache
    cache = Path(tempfile.gettempdir()) / f"flfast-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    # Anybody may have made this folder, and we run the code that lies in it.
    found = cache.lstat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise OSError(f"{cache}: others may write there")
    return cache


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flfast"


def _fingerprint(command: list[str], torch: Path) -> str:
    """Hash of all that the library depends on: source, flags, compiler, torch, processor.

    Places are no part of it: clones and environments with the same torch share a library.
    """
    query = [command[0], f"-march={_march()}", "-E", "-dM", "-x", "c++", os.devnull]
    compiler = subprocess.run(query, capture_output=True, check=False).stdout
    of_torch = (torch / "version.py", torch / "share" / "cmake" / "Torch" / "TorchConfig.cmake")
    files = [_SOURCE, *_HEADERS, *filter(Path.exists, of_torch)]  # the last one has the ABI
    flags = [word for word in command[1:] if not word.startswith(("-I", "-L", "/"))]
    words = [*flags, version("torch"), platform.machine()]
    parts = [*(path.read_bytes() for path in files), *map(str.encode, words), compiler]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
