"""The jobs, in the order of value: what matters most is known first."""

from __future__ import annotations

from benchmarks.gpu import checks
from benchmarks.gpu import cures as cure
from benchmarks.gpu.costs import costs, teardown
from benchmarks.gpu.job import Job
from benchmarks.gpu.profiles import profiled
from benchmarks.gpu.published import PUBLISHED
from benchmarks.gpu.runs import plain, trained

_F = "engine=fused"
_WIDE = ("engine.stack=2",)  # a CPU does not stack convolutions by itself
_BF16 = "trainer.precision=bf16-mixed"
_TF32 = "trainer.fp32_precision=tf32"
_STACK_1 = "engine.stack=1"

JOBS = (
    Job("costs", 40, costs),
    Job("teardown", 20, teardown, only_cuda=True),
    Job("W3", 35, trained("W3", 10, _F), same="W3"),
    Job(
        "W3, no recordings",
        30,
        trained("W3", 10, _F, patches=[cure.no_recordings]),
        same="W3",
        only_cuda=True,
    ),
    Job("W3 plain", 20, plain("W3", 5)),
    Job("W1", 60, trained("W1", 6, _F), same="W1"),
    Job("W1 plain", 40, plain("W1", 3)),
    Job("doctor", 45, checks.doctor),
    Job("tests", 95, checks.tests),
    Job("W3 eager", 40, trained("W3", 10, "engine=eager"), same="W3"),
    Job("W3 profile", 40, profiled("W3", 12, 8, _F)),
    Job("W1, tf32", 45, trained("W1", 6, _F, _TF32, cpu_words=_WIDE), same="W1"),
    Job("W1 profile", 50, profiled("W1", 6, 5, _F)),
    # The model of W3c draws dropout, which depends on who trains together.
    Job("W3c", 35, trained("W3c", 10, _F)),
    Job("W3c, tf32", 35, trained("W3c", 10, _F, _TF32, cpu_words=_WIDE)),
    Job("W3c plain", 20, plain("W3c", 4)),
    Job("W2b", 40, trained("W2b", 6, _F)),
    Job("W2b plain", 30, plain("W2b", 3)),
    Job("W6", 35, trained("W6", 5, _F)),
    Job("W6 plain", 25, plain("W6", 3)),
    Job("W6 bf16-mixed", 35, trained("W6", 5, _F, _BF16)),
    Job("W6 16-mixed", 40, trained("W6", 5, _F, "trainer.precision=16-mixed")),
    Job("W1, cudnn.benchmark", 45, trained("W1", 6, _F, "trainer.benchmark=true")),
    Job(
        "W1, no recordings", 45, trained("W1", 3, _F, patches=[cure.no_recordings]), only_cuda=True
    ),
    Job(
        "W3, 8 together",
        30,
        trained("W3", 10, _F, "engine.stack=8"),
        same="W3",
        only_cuda=True,
    ),
    Job("W3, one by one", 30, trained("W3", 10, _F, _STACK_1), same="W3"),
    Job(
        "W3 scaffold",
        30,
        trained("W3", 4, _F, "algorithm=scaffold"),
        same="scaffold",
    ),
    Job(
        "W3 scaffold eager",
        40,
        trained("W3", 4, "engine=eager", "algorithm=scaffold"),
        same="scaffold",
    ),
    Job(
        "W3, ieee",
        30,
        trained("W3", 10, _F, "trainer.fp32_precision=ieee"),
        same="W3",
        only_cuda=True,
    ),
    Job("W6 bf16-true", 30, trained("W6", 5, _F, "trainer.precision=bf16-true")),
    Job("ddp", 40, checks.ranks(_F, "strategy=ddp")),
    Job("ddp by torchrun", 40, checks.ranks(_F, "strategy=ddp", by_torchrun=True)),
    Job("dp", 40, checks.ranks("engine=eager", "strategy=dp")),
    Job("fsdp", 40, checks.ranks("engine=eager", "strategy=fsdp"), only_cuda=True),
    *(
        Job(f"published {entry.name}", 60, trained(entry.workload, 3, _F, *entry.words))
        for entry in PUBLISHED
    ),
)
