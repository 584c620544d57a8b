"""Settings that others have published seconds of, to run beside their numbers. Torch-free.

Rounds are timed on random data of the same sizes and shapes; so are evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.workload import Workload
from benchmarks.workloads import WORKLOADS


@dataclass(frozen=True)
class Published:
    """What others have measured.

    Attributes:
        name: of the job.
        workload: the setting.
        by: who measured it, and on what.
        seconds: of a round; None is not published.
        words: overrides of a run of ours that does the same.
    """

    name: str
    workload: Workload
    by: str
    seconds: float | None = None
    words: tuple[str, ...] = ()


_IMAGES = Workload(
    "T6",
    "FL-Simulator: 100 clients of 500, cohort 10, ResNet-18 with group norm, B 50, E 5",
    model="resnet18",
    train_sizes=500,
    test_sizes=10_000,
    lr=0.1,
    rounds=2,
    shape=(3, 32, 32),
    num_clients=100,
    cohort=10,
    batch_size=50,
    local_epochs=5,
    weight_decay=1e-3,
    images=True,
)
_MODEL = ("model.norm=group", "model.groups=2", "model.small_images=false")
_SIMULATOR = {
    "fedavg": 15.86,
    "fedprox": 19.78,
    "scaffold": 20.09,
    "feddyn": 20.82,
    "fedcm": 20.74,
    "fedspeed": 29.48,
}
PUBLISHED = (
    Published(
        "W1",
        WORKLOADS["W1"],
        "an issue of PFLlib (253), one RTX 5090 at 7 % utilisation",
        17.0,
    ),
    Published(
        "T7",
        replace(
            _IMAGES,
            name="T7",
            title="BlazeFL: 100 clients of 500, all in a round, CNN of PyTorch's tutorial, E 5",
            model="lenet",
            cohort=100,
            lr=0.01,
            weight_decay=0.0,
        ),
        "BlazeFL's README, four Quadro RTX 6000, read off a picture (Flower: 13 s)",
        5.0,
    ),
    Published(
        "W3c",
        WORKLOADS["W3c"],
        "pfl-research, arXiv 2404.06430, one A100 with 10 CPUs: 7 to 72 times as fast as others",
    ),
    Published(
        "T1",
        Workload(
            "T1",
            "FLUTE: 1,000 clients of 60 digits, cohort 10, logistic regression, B 10",
            model="logistic",
            train_sizes=60,
            test_sizes=10_000,
            lr=0.03,
            rounds=20,
            num_clients=1000,
            cohort=10,
        ),
        "FLUTE's README, a GPU that is not named (FedML: 1.89 s)",
        0.95,
    ),
    *(
        Published(
            f"T6 {name}",
            _IMAGES,
            "FL-Simulator's README, one V100",
            seconds,
            (f"algorithm={name}", *_MODEL),
        )
        for name, seconds in _SIMULATOR.items()
    ),
)
