"""What a slow network costs: `python -m benchmarks.nodes.timing [DELAY_MS MBIT_S]`.

Two machines train under torchrun, over a fast network and over one of 20 ms each way and
100 Mbit/s. The table has seconds of a round, and what crossed the network in it.
"""

import sys
import tempfile
from pathlib import Path

from benchmarks.nodes.__main__ import Run
from benchmarks.nodes.network import Network
from benchmarks.nodes.slow_switch import Link
from flfast.output.results.table import read_rows

_WARM = 5  # rounds before those that are measured
_MODELS = {"12 kB": "model.hidden=[32]", "600 kB": "model.hidden=[2000]"}


def measure(link: Link | None, model: str, folder: Path) -> tuple[float, float]:
    """Seconds of a round, and the bytes that each machine sent and received in it."""
    with Network(2, link) as network:
        run = Run(network, folder)
        for machine in network.machines:
            run.start(machine, model, "checkpoint.every=0", "eval_every=1")
        run.wait_for_rows(_WARM + 1)
        first, before = run.rows(), network.machines[0].num_bytes()
        run.end(*network.machines)
        num = network.machines[0].num_bytes() - before
        rows = read_rows(run.run_dir / "metrics.csv")
    seconds = [float(row["time/train_s"]) + float(row["time/eval_s"]) for row in rows[_WARM:]]
    return sorted(seconds)[len(seconds) // 2], num / max(1, len(rows) - first)


def main() -> None:
    """Print the table."""
    delay, rate = (float(word) for word in [*sys.argv[1:3], "20", "100"][:2])
    links = {"fast": None, f"{delay:g} ms, {rate:g} Mbit/s": Link(delay, rate)}
    sys.stdout.write("| model | network | seconds a round | kB a round |\n|---|---|---|---|\n")
    for name, model in _MODELS.items():
        for network, link in links.items():
            with tempfile.TemporaryDirectory() as folder:
                seconds, num = measure(link, model, Path(folder))
            sys.stdout.write(f"| {name} | {network} | {seconds:.3f} | {num / 1e3:.0f} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
