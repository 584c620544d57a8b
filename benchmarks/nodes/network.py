"""Machines on a network of their own: network namespaces, which only reach each other.

It needs Linux and root. Nothing is left of it afterwards, in particular no process.
"""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class Network:
    """A switch and machines on it; a context manager.

    Args:
        size: number of machines; they have the addresses 10.77.0.1, 10.77.0.2, ...
    """

    def __init__(self, size: int) -> None:
        self._switch = f"flfast-{os.getpid()}-switch"
        self.machines = [
            Machine(f"flfast-{os.getpid()}-{number}", number, self._switch)
            for number in range(size)
        ]

    def __enter__(self) -> "Network":
        """Make the switch, the machines and the cables between them."""
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "switch", "up")
            for machine in self.machines:
                machine.plug_in()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what runs on the machines, and remove them."""
        for machine in self.machines:
            machine.kill()
        for name in [self._switch, *(machine.name for machine in self.machines)]:
            if Path("/run/netns", name).exists():
                _ip("netns", "delete", name)


class Machine:
    """One machine of a network."""

    def __init__(self, name: str, number: int, switch: str) -> None:
        self.name, self.address = name, f"10.77.0.{number + 1}"
        self._switch, self._port = switch, f"port{number}"
        self._started: list[subprocess.Popen[bytes]] = []

    def plug_in(self) -> None:
        """Make the machine, and connect it to the switch."""
        _ip("netns", "add", self.name)
        end = ("peer", "name", "eth0", "netns", self.name)
        _ip("-n", self._switch, "link", "add", self._port, "type", "veth", *end)
        _ip("-n", self._switch, "link", "set", self._port, "master", "switch", "up")
        _ip("-n", self.name, "address", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.name, "link", "set", "eth0", "up")
        _ip("-n", self.name, "link", "set", "lo", "up")

    def start(
        self, command: Sequence[str], folder: Path, env: dict[str, str]
    ) -> "subprocess.Popen[bytes]":
        """Start a command in a folder; what it says is added to the file `said` there."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "said").open("ab") as said:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *command],
                cwd=folder,
                env=os.environ | env,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        return process

    def connect(self, *, connected: bool) -> None:
        """Plug the cable in, or pull it."""
        _ip("-n", self._switch, "link", "set", self._port, "up" if connected else "down")

    def pids(self) -> list[int]:
        """Its processes."""
        return [int(pid) for pid in _ip("netns", "pids", self.name).split()]

    def kill(self) -> None:
        """Kill all of its processes."""
        if not Path("/run/netns", self.name).exists():
            return
        while pids := self.pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._started:
                process.wait()
            time.sleep(0.05)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, stdout=subprocess.PIPE, text=True).stdout
