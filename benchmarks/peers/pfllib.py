"""PFLlib, from a checkout of its repository: FedAvg of its `system/`, in one process.

Its evaluation predicts all training examples, too, and each client's test examples.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.building import build_model, load_examples, seed_torch
from benchmarks.peers.timing import Rounds, arguments, show, silent
from benchmarks.workload import Workload


def settings(workload: Workload, folder: Path, rounds: int) -> Namespace:
    """What PFLlib's `main.py` would read from its command line."""
    seed_torch(0, "initial weights")
    return Namespace(
        algorithm="FedAvg",
        auto_break=False,
        batch_num_per_client=2,
        batch_size=workload.batch_size,
        client_drop_rate=0.0,
        dataset=str(folder),  # absolute, so that its own folder of datasets is not searched
        device="cpu",
        dlg_eval=False,
        dlg_gap=100,
        eval_gap=1,
        few_shot=0,
        fine_tuning_epoch_new=0,
        global_rounds=rounds,
        goal="test",
        join_ratio=workload.cohort / workload.num_clients,
        learning_rate_decay=False,
        learning_rate_decay_gamma=0.99,
        local_epochs=workload.local_epochs,
        local_learning_rate=workload.lr,
        model=build_model(workload),
        num_classes=10,
        num_clients=workload.num_clients,
        num_new_clients=0,
        random_join_ratio=False,
        save_folder_name="items",
        send_slow_rate=0.0,
        time_select=False,
        time_threthold=10_000,
        top_cnt=100,
        train_slow_rate=0.0,
    )


def write_dataset(workload: Workload, folder: Path) -> None:
    """The workload's clients in PFLlib's format: a file per client in `train/` and in `test/`."""
    examples = load_examples(workload)
    assert examples.owner is not None
    assert examples.is_test is not None
    arrays: Any = examples.inputs
    inputs, targets = arrays.numpy(), examples.targets.numpy()
    for name, chosen in (("train", ~examples.is_test), ("test", examples.is_test)):
        (folder / name).mkdir()
        for client_id in range(workload.num_clients):
            own = np.flatnonzero(chosen & (examples.owner == client_id))
            data: Any = {"x": inputs[own], "y": targets[own]}
            np.savez(folder / name / f"{client_id}.npz", data=data)


def run(workload: Workload, folder: Path, num_rounds: int) -> tuple[Rounds, float]:
    """Seconds of each round, and the accuracy after the last.

    Its loop evaluates the weights of round r at the start of round r + 1, so it runs one more
    round, and that one is not counted.
    """
    import torch
    from flcore.servers.serveravg import FedAvg

    rounds = Rounds()

    class FinishedError(Exception):
        pass

    class Timed(FedAvg):
        def evaluate(self) -> None:
            is_first = not self.rs_test_acc
            rounds.trained()
            super().evaluate()
            if is_first:
                rounds.started()
                return
            rounds.evaluated()
            if len(rounds.rows) == num_rounds:
                raise FinishedError

    torch.set_num_threads(os.cpu_count() or 1)
    server = Timed(settings(workload, folder, num_rounds), 0)
    with suppress(FinishedError):
        server.train()
    return rounds, server.rs_test_acc[-1]


def main() -> None:
    """Run a workload's rounds; one JSON object on standard output."""
    options = arguments()
    workload: Workload = options.workload
    if isinstance(workload.test_sizes, int):
        sys.exit(f"pfllib with {workload.name}: its clients have no test examples of their own")
    sys.path.insert(0, str(options.code / "system"))  # noqa: TID251 - PFLlib is no package
    with TemporaryDirectory(prefix="flfast-benchmark-") as temporary, silent():
        folder = Path(temporary)
        if workload.root is None:
            write_dataset(workload, folder)
        else:
            folder = Path(workload.root).absolute()
        rounds, accuracy = run(workload, folder, options.rounds)
    show(workload, rounds, loss=None, accuracy=accuracy)


if __name__ == "__main__":
    main()
