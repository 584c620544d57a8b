"""What a round costs on real clients, and what travels: `python -m benchmarks.deployment`.

Runs `examples/flower/local.py`, once on this machine, and once on machines of their own (network
namespaces, with Linux and root) that slow cables connect. Needs `flfast[flower]`.
"""

import argparse
import csv
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from benchmarks.nodes.network import Network
from benchmarks.nodes.slow_switch import Link

NODES, ROUNDS = 2, 4
WORDS = (
    *("engine=eager", "model=mlp", "model.hidden=[2000,200]", f"rounds={ROUNDS}"),
    *(f"eval_every={ROUNDS}", "local_steps=1", f"partition.num_clients={NODES}"),
    *("callbacks=files", "~callbacks.partition_report", "checkpoint.every=0"),
)
MEASURED = range(2, ROUNDS)
"""Rounds without an evaluation, after the first one."""


def example() -> ModuleType:
    """The example as a module."""
    spec = spec_from_file_location("local", Path("examples/flower/local.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured(
    folder: Path, num_bytes: Callable[[], int], host: str, on: Callable[[str], list[str]]
) -> dict[str, float]:
    """Seconds and megabytes of a round between the first and the last."""
    local, seen = example(), list[tuple[float, int]]()
    deployment = local.Deployment(folder, NODES, host, on)

    def watch(rows: int) -> None:
        while len(seen) < rows:
            seen.append((time.monotonic(), num_bytes()))

    with local.deployed(deployment, WORDS):
        local.run(deployment, watch)
    first, last = seen[MEASURED.start - 1], seen[MEASURED.stop - 1]
    with (folder / "run" / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if int(row["round"]) in MEASURED]
    sent = sum(float(row["comm/up_bytes"]) + float(row["comm/down_bytes"]) for row in rows)
    return {
        "s": (last[0] - first[0]) / len(rows),
        "comm MB": sent / len(rows) / 1e6,
        "wire MB": (last[1] - first[1]) / len(rows) / 1e6,
    }


def loopback_bytes() -> int:
    """Bytes that this machine has sent to itself."""
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


def on_machines(folder: Path, link: Link) -> dict[str, float]:
    """The server and each node on a machine of its own."""
    with Network(1 + NODES, link) as network:
        server, *nodes = network.machines

        def on(name: str) -> list[str]:
            place = nodes[int(name[5:])] if name.startswith("node-") else server
            return ["ip", "netns", "exec", place.name]

        return measured(folder, server.num_bytes, server.address, on)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay-ms", type=float, default=20)
    parser.add_argument("--mbit-s", type=float, default=10)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing is left then, either
    link = Link(given.delay_ms, given.mbit_s)
    with TemporaryDirectory(prefix="flfast-deployment-") as place:
        found = {
            "one machine": measured(
                Path(place, "one"), loopback_bytes, "127.0.0.1", example().here
            )
        }
        if sys.platform == "linux" and os.geteuid() == 0:
            found[f"{link.delay_ms:g} ms, {link.mbit_s:g} Mbit/s"] = on_machines(
                Path(place, "many"), link
            )
    lines = [f"{NODES} nodes, {found['one machine']['comm MB'] / NODES / 2:.2f} MB each way"]
    for name, row in found.items():
        cells = ", ".join(f"{key} {value:.2f}" for key, value in row.items())
        lines.append(f"{name}: {cells}, wire / comm {row['wire MB'] / row['comm MB']:.3f}")
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
