"""Who runs: every contender in a process of its own, and what it reports. Torch-free.

A contender is named by parts joined with a dash:

    plain      the hand-written loop     plain-2       with two threads
    plain-cl   with channels last        plain-2p      also in two processes
    eager      flfast with that engine   eager-2       with two threads
               on one device             eager-ddp2    with strategy=ddp over two processes or GPUs
    flfast     as it comes: its default engine on all devices

    flfast:fedrep:head_epochs=1    with that algorithm and that option of it
    fused+engine.stack=1           with that override

`ddp2` alone is `flfast-ddp2`. Without a number there is one thread.

    flower, pfl, pfllib    other simulators, in environments that uv makes; see `benchmarks.peers`
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.checkouts import HERE, ROOT, Checkout
from benchmarks.processes import Ended, run
from benchmarks.workload import Workload
from flfast.output.results.table import read_rows

PEERS = {
    "flower": ("flower", "flwr[simulation]==1.42.0"),
    "pfl": ("pfl_research", "pfl[pytorch]==0.6.0"),
    "pfllib": ("pfllib", "h5py"),
}
"""Module of `benchmarks.peers` and the package that it needs, by contender."""
_PLAIN = re.compile(r"plain(?P<last>-cl)?(-(?P<ranks>[1-9]\d*)p)?(-(?P<threads>[1-9]\d*))?")
_NAME = re.compile(r"(?P<who>[a-z_]+?)(-?ddp(?P<ranks>[1-9]\d*))?(-(?P<threads>[1-9]\d*))?")


@dataclass(frozen=True)
class Contender:
    """One way to run a workload.

    Attributes:
        name: as on the command line.
        engine: `plain`, `peer`, an option of flfast's group `engine`, or none for its default.
        threads: of torch, in each process.
        ranks: processes or GPUs of strategy=ddp, or processes of the plain loop; 0 is one device,
            or all without an engine.
        overrides: of its own, such as the algorithm; none is FedAvg.
        channels_last: layout of the plain loop; flfast chooses itself.
        checkout: whose flfast runs.
    """

    name: str
    engine: str
    threads: int
    ranks: int
    overrides: tuple[str, ...] = ()
    channels_last: bool = False
    checkout: Checkout = HERE

    def of(self, checkout: Checkout) -> Contender:
        """The same with another checkout's flfast, such as `eager@2dd2e6a`."""
        name = f"{self.name}@{checkout.name}" if checkout.name else self.name
        return replace(self, name=name, checkout=checkout)


@dataclass(frozen=True)
class Setting:
    """What all contenders of a call share.

    Attributes:
        device: `cpu` or `cuda`.
        rounds: measured rounds; one more is the warm-up.
        overrides: of the user, for flfast.
        limit_s: seconds after which a process is killed; None is never.
        pfllib_code: checkout of PFLlib's repository; None if the contender does not run.
    """

    device: str
    rounds: int
    overrides: tuple[str, ...] = ()
    limit_s: float | None = None
    pfllib_code: Path | None = None


def parse(name: str) -> Contender:
    """A contender by its name.

    Raises:
        ValueError: if the name says nothing that can be run.
    """
    if name in PEERS:
        return Contender(name, "peer", 1, 0)
    if found := _PLAIN.fullmatch(name):
        ranks = int(found["ranks"] or 0)
        last = bool(found["last"] or ranks)
        return Contender(name, "plain", int(found["threads"] or 1), ranks, channels_last=last)
    engines, algorithms = (_options(group) for group in ("engine", "algorithm"))
    first, *overrides = name.split("+")
    base, *words = first.split(":")
    # `ddp2` alone: who is missing.
    found = _NAME.fullmatch(base if not base.startswith("ddp") else f"flfast-{base}")
    known = found is not None and found["who"] in {"flfast", *engines}
    known = known and all("=" in override for override in overrides)
    if found is None or not known or (words and words[0] not in algorithms):
        raise ValueError(
            f"--contenders {name}: no such contender; allowed: plain-THREADS, plain-cl, "
            "plain-PROCESSESp, ddpRANKS, and ENGINE, ENGINE-THREADS, ENGINE-ddpRANKS with ENGINE "
            f"one of {', '.join(engines)}, which may end in :ALGORITHM, one of "
            f"{', '.join(algorithms)}, and in +KEY=VALUE; {', '.join(PEERS)}"
        )
    engine = "" if found["who"] == "flfast" else found["who"]
    chosen = [f"algorithm={word}" for word in words[:1]]
    chosen += [f"algorithm.{word}" for word in words[1:]]
    chosen += overrides
    threads, ranks = int(found["threads"] or 1), int(found["ranks"] or 0)
    return Contender(name, engine, threads, ranks, tuple(chosen))


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


def measure(contender: Contender, workload: Workload, setting: Setting) -> dict[str, Any]:
    """Run a process to its end.

    Returns:
        `rounds`, a list of `train_s`, `eval_s` and more without the warm-up round; `steps` and
        `samples` of a round's training; `loss` and `accuracy` after the last; `warm_up_s`, seconds
        of the round left out; `startup_s`, the process's seconds outside of rounds;
        `warnings` of flfast; `first_round_s`, seconds from launch to the end of round 1;
        `memory_bytes` and `memory_kind`, the most that all its processes held.

    Raises:
        ContenderError: if the process fails.
    """
    with TemporaryDirectory(prefix="flfast-benchmark-") as folder:
        if contender.engine == "plain":
            result, ended = _run_plain(contender, workload, setting, Path(folder))
        elif contender.engine == "peer":
            result, ended = _run_peer(contender, workload, setting, Path(folder))
        else:
            result, ended = _run_flfast(contender, workload, setting, Path(folder))
    before = result.pop("before_s", 0.0)
    timed = sum(r["train_s"] + r["eval_s"] for r in result["rounds"])
    warm_up, *measured = result["rounds"]
    return {
        **result,
        "rounds": measured,
        "warm_up_s": warm_up["train_s"] + warm_up["eval_s"],
        "startup_s": ended.wall_s - before - timed,
        "memory_bytes": ended.memory_bytes,
        "memory_kind": ended.memory_kind,
    }


def measure_floor(workload: Workload, device: str) -> dict[str, Any]:
    """The workload's floor, from a process of its own; see `benchmarks.floors`."""
    with TemporaryDirectory(prefix="flfast-benchmark-") as folder:
        path = _written(workload, Path(folder))
        command = ["-m", "benchmarks.floors", path, "--device", device]
        floor = json.loads(run(command).output)
    assert isinstance(floor, dict)
    return floor


def _run_plain(
    contender: Contender, workload: Workload, setting: Setting, folder: Path
) -> tuple[dict[str, Any], Ended]:
    command = ["-m", "benchmarks.plain", _written(workload, folder)]
    command += [f"--threads={contender.threads}", f"--rounds={setting.rounds + 1}"]
    command += ["--channels-last"] if contender.channels_last else []
    command += [f"--processes={contender.ranks}"] if contender.ranks else []
    ended = run([*command, f"--device={setting.device}"], limit_s=setting.limit_s)
    return _with_first_round(ended), ended


def _with_first_round(ended: Ended) -> dict[str, Any]:
    result = json.loads(ended.output)
    first = result["rounds"][0]["ended_at"] - ended.started_at
    return {**result, "first_round_s": first}


def _run_peer(
    contender: Contender, workload: Workload, setting: Setting, folder: Path
) -> tuple[dict[str, Any], Ended]:
    module, package = PEERS[contender.name]
    words = ["-m", f"benchmarks.peers.{module}", _written(workload, folder)]
    words += [f"--rounds={setting.rounds + 1}"]
    if contender.name == "pfl":
        ranks = f"--nproc-per-node={os.cpu_count()}"
        words = ["-m", "torch.distributed.run", "--standalone", ranks, *words]
    if contender.name == "pfllib":
        assert setting.pfllib_code is not None, "the command line asks for it"
        words += [f"--code={setting.pfllib_code.absolute()}"]
    # An overlay on this project's environment: the peer runs on the same torch.
    python = ("uv", "run", "--quiet", "--no-sync", "--with", package, "python")
    ended = run(words, python=python, limit_s=setting.limit_s)
    return _with_first_round(ended), ended


def flfast_command(
    contender: Contender, workload: Workload, setting: Setting, folder: Path
) -> list[str]:
    """The command that a user would type, after `python`."""
    ranks = ["strategy=single"] if contender.engine else []
    if contender.ranks:
        ranks = ["strategy=ddp", f"trainer.devices={contender.ranks}"]
    return [
        *("-m", "flfast.train", "--config-dir", str(contender.checkout.conf)),
        *workload.flfast_overrides(device=setting.device, rounds=setting.rounds + 1),
        *([f"engine={contender.engine}"] if contender.engine else []),
        f"threads={contender.threads}",
        *ranks,
        *contender.overrides,
        *setting.overrides,
        f"hydra.run.dir={folder / 'run'}",
    ]


def _run_flfast(
    contender: Contender, workload: Workload, setting: Setting, folder: Path
) -> tuple[dict[str, Any], Ended]:
    table = folder / "run" / "metrics.csv"
    command = flfast_command(contender, workload, setting, folder)
    ended = run(command, contender.checkout, table=table, limit_s=setting.limit_s)
    before, *rows = read_rows(table)
    clients = [row for row in read_rows(folder / "run" / "clients.csv") if row["num_steps"]]
    last = {k: float(v) for k, v in rows[-1].items() if v and k.startswith(("global/", "local/"))}
    result = {
        "first_round_s": ended.first_row_s,
        "rounds": [
            {
                "train_s": float(row["time/train_s"]),
                "eval_s": float(row["time/eval_s"] or 0),
                "gpu_bytes": float(row.get("monitor/gpu_memory_bytes") or 0),
            }
            for row in rows
        ],
        # Row 0 is the model before training, evaluated, too.
        "warnings": _warnings(folder / "run"),
        "before_s": float(before["time/eval_s"] or 0),
        "steps": sum(int(row["num_steps"]) for row in clients) / len(rows),
        "samples": sum(
            float(row["train/samples_per_s"]) * float(row["time/train_s"]) for row in rows
        )
        / len(rows),
        "loss": last.get("global/loss"),  # of algorithms without a server's model there is none
        "accuracy": last.get("global/accuracy"),
    }
    return result, ended


def _warnings(folder: Path) -> list[str]:
    """What the run warned of, such as a program that was not recorded."""
    lines = [line for path in folder.glob("*.log") for line in path.read_text().splitlines()]
    return sorted({line.split(" - ", 1)[-1] for line in lines if "[WARNING]" in line})


def _written(workload: Workload, folder: Path) -> str:
    path = folder / "workload.json"
    path.write_text(json.dumps(asdict(workload)), encoding="utf-8")
    return str(path)
