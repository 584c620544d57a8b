"""What is timed: every workload, by name. Torch-free."""

from dataclasses import replace
from pathlib import Path

from benchmarks.workload import Workload

# Client sizes of PFLlib's MNIST split (Dirichlet 0.1), for machines that do not have it.
PFLLIB_TRAIN = (
    *(1972, 374, 1222, 1905, 1437, 4641, 942, 951, 2700, 3004),
    *(2337, 2829, 2709, 1600, 4297, 4086, 2721, 4239, 3949, 4577),
)
PFLLIB_TEST = (
    *(658, 125, 408, 636, 480, 1548, 314, 318, 900, 1002),
    *(779, 943, 904, 534, 1433, 1362, 907, 1414, 1317, 1526),
)


_PFLLIB = Workload(
    "W1",
    "PFLlib's MNIST split, 20 clients, CNN, batch 10",
    model="cnn",
    train_sizes=PFLLIB_TRAIN,
    test_sizes=PFLLIB_TEST,
    lr=0.005,
    rounds=1,
    last_batch="drop",
)
_MANY = Workload(
    "W3",
    "1,000 clients of 50, cohort 50, CNN, batch 10",
    model="cnn",
    train_sizes=50,
    test_sizes=2000,
    lr=0.05,
    rounds=5,
    num_clients=1000,
    cohort=50,
)
_POPULATION = Workload(
    "W5",
    "100,000 clients of 2, cohort 100, MLP, batch 10",
    model="mlp",
    train_sizes=2,
    test_sizes=1000,
    lr=0.05,
    rounds=10,
    shape=(32,),
    num_clients=100_000,
    cohort=100,
)
_COLOUR = Workload(
    "W6",
    "10 clients of 5,000 colour images, LeNet, momentum, 3 epochs, batch 64",
    model="lenet",
    train_sizes=5000,
    test_sizes=10_000,
    lr=0.01,
    rounds=1,
    shape=(3, 32, 32),
    num_clients=10,
    cohort=10,
    batch_size=64,
    local_epochs=3,
    momentum=0.9,
    weight_decay=5e-4,
    images=True,
)
_ALL = (
    _PFLLIB,
    replace(
        _PFLLIB,
        name="W1b",
        title="PFLlib's MNIST split, 20 clients, CNN, B = infinity",
        batch_size=-1,
        micro_batch=64,
    ),
    replace(
        _PFLLIB,
        name="W2",
        title="PFLlib's MNIST split, 20 clients, logistic regression, batch 10",
        model="logistic",
        rounds=5,
    ),
    replace(
        _PFLLIB,
        name="W2b",
        title="PFLlib's MNIST split, 20 clients, MLP 784-200-200-10, batch 10",
        model="mlp",
        rounds=3,
    ),
    _MANY,
    replace(
        _MANY,
        name="W3c",
        title="1,000 clients of 50 colour images, cohort 50, pfl-research's CNN, batch 10",
        model="pfl_cnn",
        shape=(3, 32, 32),
        rounds=2,
    ),
    replace(
        _MANY,
        name="W4",
        title="100 clients of 600, cohort 10, MLP 784-200-200-10, 5 epochs, batch 10",
        model="mlp",
        train_sizes=600,
        test_sizes=10_000,
        num_clients=100,
        cohort=10,
        local_epochs=5,
    ),
    _POPULATION,
    replace(
        _POPULATION,
        name="W5m",
        title="1,000,000 clients of 2, cohort 100, MLP, batch 10",
        num_clients=1_000_000,
    ),
    _COLOUR,
    replace(_COLOUR, name="W6a", title=f"{_COLOUR.title}, cropped and mirrored", augmented=True),
    replace(
        _PFLLIB,
        name="strategies",
        title="Threads or processes: W1 by flfast with one thread, two threads, two processes",
        contenders=("eager-1", "eager-2", "eager-ddp2"),
    ),
    replace(
        _MANY,
        name="algorithms",
        title="What algorithms cost: W3 by FedAvg and by others",
        rounds=10,
        contenders=(
            *("flfast", "flfast:fedprox", "flfast:scaffold", "flfast:ditto"),
            *("flfast:fedrep:head_epochs=1", "flfast:fedrep"),
        ),
    ),
)
WORKLOADS = {workload.name: workload for workload in _ALL}
# What runs where the command line names none.
USUAL = tuple(name for name, workload in WORKLOADS.items() if not workload.contenders)


def find(name: str, *, pfllib: Path, quick: bool) -> Workload:
    """The workload of a name, on PFLlib's data where its sizes are theirs and they are there.

    Raises:
        ValueError: if there is no such workload.
    """
    if name not in WORKLOADS:
        raise ValueError(f"--workloads {name}: no such workload; allowed: {', '.join(WORKLOADS)}")
    workload = WORKLOADS[name]
    if quick:
        return workload.shrunk()
    real = workload.uneven and (pfllib / "train").is_dir()
    return replace(workload, root=str(pfllib.resolve())) if real else workload
