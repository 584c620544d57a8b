"""What a first GPU has to show, in parts. Each runs in a process of its own: `benchmarks.gpu`."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import processes
from benchmarks.checkouts import ROOT
from benchmarks.contenders import Contender, Setting, flfast_command, measure, parse
from benchmarks.gpu_published import PUBLISHED
from benchmarks.machine import gpu_names
from benchmarks.workload import Workload
from benchmarks.workloads import find

SAME = 1e-3  # relative; losses of contenders that compute the same
MOST_BYTES = 16 * 2**20  # of a file
START_S = 5  # the least that a run takes
PYTEST = ("-m", "pytest", "-v", "-rfE", "-p", "no:cacheprovider", "-k", "gpu or cuda")


@dataclass
class Task:
    """A part while it runs.

    Attributes:
        device: `cpu` or `cuda`.
        quick: whether workloads are shrunk.
        limit_s: seconds that it has.
        folder: for files that it leaves.
        state: file that holds `found` after every step.
        found: `failures` and `notes`, lines; `workloads`, entries as in a result of
            `benchmarks.speed`; `published`, rows beside numbers of others.
    """

    device: str
    quick: bool
    limit_s: float
    folder: Path
    state: Path
    found: dict[str, Any] = field(
        default_factory=lambda: {"failures": [], "notes": [], "workloads": [], "published": []}
    )
    began: float = field(default_factory=time.perf_counter)

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.limit_s - (time.perf_counter() - self.began)

    def save(self) -> None:
        """Keep what was found so far: the process may be killed."""
        part = self.state.with_suffix(".part")
        part.write_text(json.dumps(self.found), encoding="utf-8")
        part.replace(self.state)

    def fail(self, line: str) -> None:
        """Note a failure, and go on."""
        self.found["failures"].append(line)
        self.save()

    def note(self, line: str) -> None:
        """Note a fact."""
        self.found["notes"].append(line)
        self.save()


@dataclass(frozen=True)
class Part:
    """One thing to show.

    Attributes:
        title: what for, in a line.
        seconds: that it may take, at least.
        run: does it.
    """

    title: str
    seconds: int
    run: Callable[[Task], None]


def command(*arguments: str) -> tuple[int, list[str]]:
    """Run Python; what it writes goes to the log at once.

    Returns:
        Its exit code and lines.
    """
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        lines.append(line.rstrip())
    return process.wait(), lines


def doctor(task: Task) -> None:
    """`python -m flfast.doctor`: what works here."""
    with TemporaryDirectory(prefix="flfast-gpu-") as folder:
        code, lines = command("-m", "flfast.doctor", folder)
    if code:
        task.fail(f"flfast.doctor ended with {code}")
    for line in lines:
        if "fails" in line:
            task.note(line.strip())


def tests(task: Task) -> None:
    """Tests that need a GPU: fused = eager on the device, recorded or not."""
    # The others need not be imported. Those of this command would run it once more.
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if "cuda" in path.read_text()]
    own = ROOT / "tests" / "benchmarks"
    code, lines = command(*PYTEST, *sorted(str(f) for f in files if own not in f.parents))
    summary = next((line for line in reversed(lines) if " in " in line), "")
    task.note(summary.strip(" =") or "no summary")
    if code:
        task.fail(f"pytest ended with {code}")
        for line in lines:
            if line.startswith(("FAILED", "ERROR")):
                task.note(line)
    elif task.device == "cuda" and " passed" not in summary:
        task.fail("no test ran")


def fused_vs_eager(task: Task) -> None:
    """The same numbers by both engines, and how fast each is."""
    small = replace(task, quick=True)  # shares what it finds
    timed(small, "W3", ("eager", "fused", "eager:scaffold", "fused:scaffold"), same=True)
    timed(small, "W2b", ("eager", "fused"), same=True)
    timed(small, "W6a", ("eager", "fused"), same=True)


def workloads(task: Task) -> None:
    """The workloads of the targets, against the plain loop."""
    for name in ("W1", "W3c", "W6", "W2b"):
        timed(task, name, ("plain-1", "plain-cl", "fused"))


def graphs_off(task: Task) -> None:
    """What CUDA graphs gain, and that they change no number."""
    timed(task, "W3", ("fused", "fused+graphs=off"), same=True)


def stacks(task: Task) -> None:
    """What training clients together gains, and that it changes no number."""
    widths = ("fused", "fused+engine.stack=1", "fused+engine.stack=8")
    timed(task, "W3", widths, same=True)


def precision(task: Task) -> None:
    """Precisions other than float32."""
    chosen = ["fused", "fused+trainer.precision=bf16-mixed"]
    if task.device == "cuda":
        chosen += ["fused+trainer.precision=bf16-true", "flfast+trainer.precision=16-mixed"]
    timed(task, "W6", chosen)


def profile(task: Task) -> None:
    """Where the device's time goes: a table of operators, and a trace to look at."""
    contender = parse("fused+trainer.profiler=pytorch")
    workload = find("W3", pfllib=Path("nowhere"), quick=task.quick)
    with TemporaryDirectory(prefix="flfast-gpu-") as folder:
        setting = Setting(task.device, 1)
        words = flfast_command(contender, workload, setting, Path(folder))
        processes.run(words, limit_s=task.left_s)
        run = Path(folder) / "run"
        reports = [path.read_text() for path in sorted(run.glob("*profile*.txt"))]
        if not any(report.strip() for report in reports):
            task.fail("the profiler left no report")
        (task.folder / "profile.txt").write_text("\n".join(reports), encoding="utf-8")
        traces = sorted(run.glob("fit*.trace.json"), key=lambda path: path.stat().st_size)
        for trace in traces[-1:]:
            _keep(task, trace, task.folder / "trace.json.gz")


def published(task: Task) -> None:
    """Settings that others have published seconds of."""
    for entry in PUBLISHED:
        workload = _tiny(entry.workload) if task.quick else entry.workload
        for name, theirs in entry.seconds.items():
            if task.left_s < START_S:
                task.fail(f"{workload.name}: no time left for {name}")
                continue
            setting = Setting(task.device, workload.rounds, limit_s=task.left_s)
            try:
                done = measure(parse(name), workload, setting)
            except (processes.ContenderError, OSError, ValueError, KeyError) as error:
                task.fail(f"{workload.name}, {name}: {_last_line(error)}")
                sys.stdout.write(f"{error}\n")
                continue
            ours = median(each["train_s"] for each in done["rounds"])
            task.found["published"].append(
                {
                    "title": workload.title,
                    "contender": name,
                    "train_s": ours,
                    "eval_s": median(each["eval_s"] for each in done["rounds"]),
                    "clients_per_s": workload.cohort / ours,
                    "published_s": theirs,
                    "by": entry.by,
                }
            )
            task.save()


def _tiny(workload: Workload) -> Workload:
    """A hundredth of the work and less: a ResNet takes 0.2 s for a step of 50 images on a CPU."""
    small = workload.shrunk()
    if not isinstance(small.train_sizes, int):
        return small
    return replace(small, train_sizes=min(small.train_sizes, 20), test_sizes=20, local_epochs=1)


def _keep(task: Task, trace: Path, packed: Path) -> None:
    with trace.open("rb") as source, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(source, target)
    if packed.stat().st_size > MOST_BYTES:
        task.note(f"the trace has {packed.stat().st_size / 1e6:.0f} MB, and was not kept")
        packed.unlink()


def strategies(task: Task) -> None:
    """Every strategy on all GPUs, a world that torchrun started included."""
    ranks = len(gpu_names()) if task.device == "cuda" else 2
    torchrun = ("torch.distributed.run", f"--nproc-per-node={ranks}", "--master-addr=127.0.0.1")
    ddp = parse(f"fused-ddp{ranks}")
    joined = replace(ddp, name=f"{ddp.name} by torchrun", module=(*torchrun, "-m", "flfast.train"))
    chosen = ("fused", ddp, joined, f"eager+strategy=dp+trainer.devices={ranks}")
    sharded = (f"eager+strategy=fsdp+trainer.devices={ranks}",) if task.device == "cuda" else ()
    timed(replace(task, quick=True), "W3", (*chosen, *sharded), same=True)


PARTS = {
    "doctor": Part("what works on this machine", 30, doctor),
    "tests": Part("tests that need a GPU", 95, tests),
    "fused-vs-eager": Part("both engines give the same numbers", 80, fused_vs_eager),
    "workloads": Part("speed against the plain loop", 115, workloads),
    "graphs-off": Part("what CUDA graphs gain", 35, graphs_off),
    "stacks": Part("what training clients together gains", 45, stacks),
    "precision": Part("bf16 and fp16", 50, precision),
    "profile": Part("where the device's time goes", 30, profile),
    "strategies": Part("ddp, dp, fsdp, torchrun", 45, strategies),
    "published": Part("seconds beside those that others have published", 540, published),
}


def timed(
    task: Task, name: str, contenders: Sequence[str | Contender], *, same: bool = False
) -> None:
    """Measure contenders on a workload; what fails is noted, and the others go on.

    Args:
        task: the part.
        name: of the workload.
        contenders: by name, or as they are.
        same: whether those of one algorithm must end at the same loss.
    """
    from benchmarks.floors import floor  # with torch, in this process

    workload = find(name, pfllib=Path("nowhere"), quick=task.quick)
    entry = {**_facts(workload), "floor": floor(workload, task.device), "measured": {}}
    task.found["workloads"].append(entry)
    rounds = workload.rounds if task.quick else max(workload.rounds, 2)
    for who in contenders:
        contender = parse(who) if isinstance(who, str) else who
        if task.left_s < START_S:
            task.fail(f"{name}: no time left for {contender.name}")
            continue
        try:
            setting = Setting(task.device, rounds, limit_s=task.left_s)
            done = measure(contender, workload, setting)
        except (processes.ContenderError, OSError, ValueError, KeyError) as error:
            task.fail(f"{name}, {contender.name}: {_last_line(error)}")
            sys.stdout.write(f"{error}\n")
            continue
        entry["measured"][contender.name] = [done]
        task.save()
    if same:
        _compare_losses(task, name, entry["measured"])


def _compare_losses(task: Task, name: str, measured: dict[str, list[dict[str, Any]]]) -> None:
    """Contenders of one algorithm do the same arithmetic, whatever runs it."""
    by_algorithm: dict[str, dict[str, float]] = {}
    for contender, (run,) in measured.items():
        algorithm = contender.partition("+")[0].partition(":")[2]
        if run["loss"] is not None:
            by_algorithm.setdefault(algorithm, {})[contender] = run["loss"]
    for losses in by_algorithm.values():
        first, *others = losses.values()
        said = ", ".join(f"{who} {loss:.6g}" for who, loss in losses.items())
        # Of a NaN no comparison holds.
        if not all(abs(loss - first) <= SAME * abs(first) for loss in (first, *others)):
            task.fail(f"{name}: other numbers; loss of {said}")
        elif others:
            task.note(f"{name}: the same numbers; loss of {said}")


def _facts(workload: Workload) -> dict[str, Any]:
    fields = asdict(workload)
    fields.pop("root")  # a path of this machine
    return {
        "workload": fields,
        "note": "random images of the same sizes" if workload.uneven else "",
        "samples": workload.samples,
        "steps": workload.steps,
        "data_bytes": workload.data_bytes,
    }


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
