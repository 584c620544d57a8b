"""Build hook of hatchling: a wheel with compiled kernels, if FLFAST_TORCHES names a folder.

That folder has torch's headers and libraries, one subfolder for each minor version of torch, as
`.ci/torches` makes it. Without the variable the wheel is pure, and nothing is compiled.
"""

import os
import runpy
import subprocess
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Kernels(BuildHookInterface):
    """Adds a library for each version of torch and each level of processors."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the libraries, and give the wheel the tag of this platform."""
        torches = os.environ.get("FLFAST_TORCHES")
        if not torches or version == "editable":
            return
        native = Path(self.root, "flfast", "state", "native")
        compiler = runpy.run_path(str(native / "compiler.py"))
        system = sysconfig.get_platform()  # _PYTHON_HOST_PLATFORM sets it, for a cross compiler
        levels = compiler["LEVELS"][system.rpartition("-")[2]]
        self._folder = tempfile.TemporaryDirectory()

        def compiled(torch: Path, level: str) -> str:
            path = Path(self._folder.name, compiler["library_name"](torch.name, level))
            cxx = os.environ.get("CXX", "c++")
            command = compiler["compile_command"](cxx, torch / "torch", level)
            subprocess.run([*command, "-w", "-s", "-o", str(path)], check=True)
            return str(path)

        pairs = [(torch, level) for torch in sorted(Path(torches).iterdir()) for level in levels]
        if not pairs:
            raise FileNotFoundError(f"FLFAST_TORCHES={torches} is empty; .ci/torches fills it")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for path in pool.map(compiled, *zip(*pairs, strict=True)):
                place = native.relative_to(self.root) / Path(path).name
                build_data["force_include"][path] = str(place)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{system.replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the libraries, which are in the wheel now."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
