"""The constants of `model.py`, measured on this machine with the package's own functions."""

import pickle
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.scale.model import Constants
from flfast.channel.reduction import MeanReduction
from flfast.channel.sent import ClientReport
from flfast.checkpoints.files import publish
from flfast.datamodules.examples import ClientIndices
from flfast.distributed.assignment import assign_cohort, owner
from flfast.distributed.world import ALONE, World, common_spec
from flfast.engines.delivery import Trained, exchange
from flfast.federation.samplers.cohort import Cohort
from flfast.federation.samplers.uniform import uniform
from flfast.federation.sampling import Sampling
from flfast.federation.table_rows import client_rows, idle_rows, training_columns
from flfast.models.mlp import mlp
from flfast.output.callbacks.clients_table import ClientsTable
from flfast.state.store import ClientStates
from flfast.state.tensor_file import write_tensors
from flfast.state.tree import Tree
from flfast.state.weights import read_weights
from flfast.tasks.by_name import TASKS

POPULATION = 10**7
EXAMPLES = 20
"""Of each client."""

_WALL = time.perf_counter
_PROTOCOL = pickle.HIGHEST_PROTOCOL


def seconds(
    call: Callable[[], object], tries: int = 5, clock: Callable[[], float] = time.process_time
) -> float:
    """Least seconds of a call; of processor time, if others use the machine as well."""
    least = float("inf")
    for _ in range(tries):
        start = clock()
        call()
        least = min(least, clock() - start)
    return least


def slope(measure: Callable[[int], float], small: int, large: int) -> float:
    """What one unit adds to a measure."""
    return (measure(large) - measure(small)) / (large - small)


def cohort_of(num: int) -> list[int]:
    """A uniform cohort of the population, ascending."""
    drawn = uniform(
        POPULATION, fraction=1.0, count=num, dropout=0.0, rng=np.random.default_rng(num)
    )
    return drawn.clients.tolist()


def reports_of(clients: list[int]) -> list[ClientReport]:
    """Reports as a cohort of clients makes them."""
    losses = np.random.default_rng(0).random(len(clients)).tolist()
    return [
        ClientReport(client_id, EXAMPLES, EXAMPLES, 2, loss, 4_000_000)
        for client_id, loss in zip(clients, losses, strict=True)
    ]


def sample_s() -> float:
    """Seconds of drawing one client of the cohort."""
    data: Any = SimpleNamespace(candidates=np.arange(POPULATION))

    def draw(num: int) -> float:
        sampler = partial(uniform, fraction=1.0, count=num, dropout=0.0)
        sampling = Sampling(sampler, data, seed=0, rounds=1)
        return seconds(lambda: sampling.cohort(1).clients.tolist())

    return slope(draw, 10**4, 10**6)


def assign_s() -> tuple[float, float]:
    """Seconds of assigning a client, and what each doubling of the ranks adds to them."""
    num = 20_000
    cohort = cohort_of(num)
    # The examples' own indices are not looked at: clients of no examples have sizes as well.
    owned = ClientIndices(np.zeros(0, dtype=np.int64), np.zeros(POPULATION + 1, dtype=np.int64))
    costs = [EXAMPLES] * num

    def assign(ranks: int) -> float:
        return seconds(lambda: assign_cohort(cohort, costs, World(0, ranks), stateful=False))

    level = max(0.0, assign(1024) - assign(16)) / 6 / num
    sizes = seconds(lambda: [len(owned.indices_of(client_id)) for client_id in cohort]) / num
    return assign(16) / num - 4 * level + sizes, level


def report_bytes() -> float:
    """Bytes of a pickled report."""
    return slope(lambda n: len(pickle.dumps(reports_of(cohort_of(n)), _PROTOCOL)), 100, 1100)


def exchange_s() -> float:
    """Seconds of reading and sorting a report of the cohort."""

    def read(num: int) -> float:
        clients = cohort_of(num)
        pickled = pickle.dumps(reports_of(clients), _PROTOCOL)
        reports = partial(pickle.loads, pickled)  # what ranks do with them, without a network
        return seconds(lambda: exchange(ALONE, reports(), MeanReduction(), clients))

    return slope(read, 10**3, 10**5)


def columns_s() -> float:
    """Seconds of the columns of a report's client, and its part in the round's."""
    nobody = np.zeros(0, dtype=np.int64)

    def tabulate(num: int) -> float:
        clients = cohort_of(num)
        cohort = Cohort(np.array(clients), nobody)
        trained = Trained(None, reports_of(clients), "", 0)

        def columns() -> None:
            idle = idle_rows(trained, cohort, {})
            training_columns(trained, cohort, idle, seconds=1.0)
            client_rows(trained, cohort)

        return seconds(columns)

    return slope(tabulate, 10**3, 10**5)


def specs() -> tuple[float, float]:
    """Bytes of the shapes of an MLP's upload, and seconds of reading those of one rank."""
    reduction = MeanReduction()
    reduction.add(0, weights(10**6), 1.0)
    pickled = pickle.dumps(([], reduction.specs()), _PROTOCOL)

    def read(num: int) -> float:
        return seconds(lambda: common_spec([pickle.loads(pickled)[1][0] for _ in range(num)]))

    return len(pickled), slope(read, 10, 1000)


def weights(parameters: int) -> Tree:
    """Weights of an MLP with about as many parameters."""
    width = max(1, round((np.sqrt(42**2 + 4 * parameters) - 42) / 2))
    return read_weights(mlp(input_shape=(32,), num_classes=10, hidden=[width, width], dropout=0.0))


def row_s() -> float:
    """Seconds of a row of `clients.csv`."""
    no_names = SimpleNamespace(client_names=())
    with TemporaryDirectory() as folder:
        federation: Any = SimpleNamespace(run_dir=Path(folder), data=no_names)
        table = ClientsTable(every_round=True)

        def write(num: int) -> float:
            trained = Trained(None, reports_of(cohort_of(num)), "", 0)
            nobody = np.zeros(0, dtype=np.int64)
            rows = client_rows(trained, Cohort(nobody, nobody))
            return seconds(lambda: table.on_round_end(federation, {"round": 1}, rows))

        write(1)  # reads an earlier table, and writes the columns
        return slope(write, 10**3, 10**5)


def predictions() -> tuple[float, float]:
    """Bytes of a predicted example, and seconds of reading a rank's predictions of few."""

    def pickled(num: int) -> bytes:
        task = TASKS["classification"]
        statistics = task.statistics(torch.randn(num, 10), torch.zeros(num, dtype=torch.int64))
        return pickle.dumps([statistics], _PROTOCOL)

    def read(ranks: int) -> float:
        few = pickled(1)

        def all_ranks() -> None:
            parts = [pickle.loads(few)[0] for _ in range(ranks)]
            _ = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

        return seconds(all_ranks)

    return slope(lambda num: len(pickled(num)), 100, 1100), slope(read, 10, 1000)


def state_s() -> float:
    """Seconds of copying, pickling, reading and storing a parameter of a client state."""

    def move(parameters: int) -> float:
        states, there = ClientStates(), ClientStates()
        for client_id in range(4):
            states.put(client_id, weights(parameters))
            there.put(client_id, weights(parameters))

        def there_and_here() -> None:
            pickled = pickle.dumps({k: states.get(k) for k in range(4)}, _PROTOCOL)
            for client_id, state in pickle.loads(pickled).items():
                there.put(client_id, state)

        return seconds(there_and_here) / 4

    return slope(move, 10**4, 10**6)


def moved() -> tuple[float, float]:
    """Fraction of a cohort whose states move with 100 clients a rank; the most of a rank / mean.

    The rank is one that sends states of its own, or one that returns those of others.
    """
    ranks, num = 100, 10**4
    cohort, costs = cohort_of(num), [EXAMPLES] * num
    first = assign_cohort(cohort, costs, World(0, ranks), stateful=True)
    homes = Counter(owner(World(0, ranks), client_id) for client_id in first.moved)
    return len(first.moved) / num, max(homes.values()) * ranks / len(first.moved)


def file_s() -> float:
    """Seconds of a rank's file in a checkpoint, on a local disk."""

    def complete(num: int) -> float:
        with TemporaryDirectory() as folder:
            part, names = Path(folder, "part"), [f"clients{rank}.pt" for rank in range(num)]
            part.mkdir()
            for name in names:
                write_tensors(part / name, {"stacks": []})
            return seconds(lambda: publish(part, Path(folder, "final"), {}, names), 1, _WALL)

    return slope(complete, 20, 220)


def request_s() -> float:
    """Seconds that the store of rank 0 takes for a record, of which gloo waits and then asks."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    server.set("key", "value")
    clients = [dist.TCPStore("127.0.0.1", server.port, wait_for_workers=False) for _ in range(4)]

    def ask(client: dist.TCPStore) -> None:
        for _ in range(2000):
            client.wait(["key"])
            client.get("key")

    with ThreadPoolExecutor(len(clients)) as threads:
        return seconds(lambda: list(threads.map(ask, clients)), clock=_WALL) / (
            2000 * len(clients)
        )


def connect_s() -> float:
    """Seconds of processor time of a connection to a peer, with the requests for its record.

    The ranks are threads of this process.
    """
    ranks = 32
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stores = [
        dist.TCPStore("127.0.0.1", server.port, wait_for_workers=False) for _ in range(ranks)
    ]
    groups: dict[int, object] = {}

    def join(rank: int) -> None:
        groups[rank] = dist.ProcessGroupGloo(stores[rank], rank, ranks, timedelta(seconds=60))

    with ThreadPoolExecutor(ranks) as threads:
        mesh_s = seconds(lambda: list(threads.map(join, range(ranks))), tries=1)
    return mesh_s / (ranks * (ranks - 1))


def measured() -> Constants:
    """All constants, in less than a minute."""
    assign, level = assign_s()
    spec_bytes, spec_s = specs()
    prediction_bytes, prediction_s = predictions()
    fraction, most = moved()
    return Constants(
        sample_s=sample_s(),
        assign_s=assign,
        assign_level_s=level,
        report_bytes=report_bytes(),
        exchange_s=exchange_s(),
        columns_s=columns_s(),
        spec_bytes=spec_bytes,
        spec_s=spec_s,
        row_s=row_s(),
        prediction_bytes=prediction_bytes,
        prediction_s=prediction_s,
        state_s=state_s(),
        moved=fraction,
        moved_most=most,
        file_s=file_s(),
        request_s=request_s(),
        connect_s=connect_s(),
    )
