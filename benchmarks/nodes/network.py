"""Machines on a network of their own: network namespaces, which only reach each other.

It needs Linux and root. Nothing is left of it afterwards, in particular no process.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.nodes.slow_switch import Link, forward, mac, open_port


class Network:
    """A switch and machines on it; a context manager.

    Args:
        size: number of machines; they have the addresses 10.77.0.1, 10.77.0.2, ...
        link: how slow their cables are; without it, as fast as memory.
    """

    def __init__(self, size: int, link: Link | None = None) -> None:
        self._link = link
        self._forwarding: BaseProcess | None = None
        self._switch = f"flfast-{os.getpid()}-switch"
        self.machines = [
            Machine(f"flfast-{os.getpid()}-{number}", number, self._switch)
            for number in range(size)
        ]

    def __enter__(self) -> "Network":
        """Make the switch, the machines and the cables between them."""
        try:
            if self._link is None:
                _ip("netns", "add", self._switch)
                _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
                _ip("-n", self._switch, "link", "set", "switch", "up")
                for machine in self.machines:
                    machine.plug_in()
            else:
                self._forwarding = self._forward(self._link)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _forward(self, link: Link) -> BaseProcess:
        """Start a slow switch, and plug all machines in."""
        ports = [machine.plug_into_port() for machine in self.machines]
        process = multiprocessing.get_context("fork").Process(target=forward, args=(ports, link))
        process.start()
        for port in ports:
            os.close(port)
        return process

    def __exit__(self, *_: object) -> None:
        """Kill what runs on the machines, and remove them."""
        for machine in self.machines:
            machine.kill()
        if self._forwarding is not None:
            self._forwarding.kill()
            self._forwarding.join()
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
        self._go_up()

    def plug_into_port(self) -> int:
        """Make the machine; returns the switch's end of its cable."""
        _ip("netns", "add", self.name)
        number = int(self.address.rpartition(".")[2]) - 1
        tap = f"fl{os.getpid()}-{number}"
        port = open_port(tap)
        _ip("link", "set", tap, "netns", self.name, "name", "eth0", "address", mac(number))
        self._go_up()
        return port

    def _go_up(self) -> None:
        _ip("-n", self.name, "address", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.name, "link", "set", "eth0", "up")
        _ip("-n", self.name, "link", "set", "lo", "up")

    def num_bytes(self) -> int:
        """Bytes that the machine has sent and received."""
        text = _ip("-n", self.name, "-s", "-j", "link", "show", "eth0")
        found = json.loads(text)[0]["stats64"]
        return int(found["tx"]["bytes"] + found["rx"]["bytes"])

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
