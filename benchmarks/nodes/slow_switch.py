"""A switch in this process: it forwards packets late, and no faster than a rate.

Kernels without `netem` have no other. Each port is a TAP device, which is moved to a machine.
"""

import fcntl
import heapq
import os
import select
import struct
import time
from itertools import count
from typing import NamedTuple

_TUNSETIFF, _TAP, _NO_PI = 0x400454CA, 0x0002, 0x1000


class Link(NamedTuple):
    """A cable.

    Attributes:
        delay_ms: time of a packet on its way, one way.
        mbit_s: rate of each sender.
    """

    delay_ms: float
    mbit_s: float


def mac(port: int) -> str:
    """The hardware address that belongs to a port."""
    return f"02:00:00:00:00:{port + 1:02x}"


def open_port(name: str) -> int:
    """Make a TAP device; returns its file."""
    port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(port, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP | _NO_PI))
    return port


def forward(ports: list[int], link: Link) -> None:
    """Forward packets for ever."""
    free = [0.0] * len(ports)  # when the sender's cable has sent all that waits
    waiting: list[tuple[float, int, int, bytes]] = []
    numbers = count()
    bytes_s = link.mbit_s * 1e6 / 8
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, sender, packet = heapq.heappop(waiting)
            own = packet[5] - 1  # the last byte of the receiver's address is its port
            many = packet[0] & 1
            for number, port in enumerate(ports):
                if number != sender and (many or number == own):
                    os.write(port, packet)
        patience = max(0.0, waiting[0][0] - now) if waiting else None
        for port in select.select(ports, [], [], patience)[0]:
            sender = ports.index(port)
            try:
                packet = os.read(port, 1 << 16)
            except BlockingIOError:
                continue
            free[sender] = max(free[sender], time.monotonic()) + len(packet) / bytes_s
            arrives = free[sender] + link.delay_ms / 1e3
            heapq.heappush(waiting, (arrives, next(numbers), sender, packet))
