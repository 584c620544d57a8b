"""Flower's simulation: one Ray actor per core, each client trained by the plain loop.

The server evaluates, with the plain loop and all cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.flower_client import client_app, loop_of
from benchmarks.peers.timing import Rounds, arguments, show, silent
from benchmarks.workload import Workload


class TimedFedAvg(FedAvg):
    """FedAvg that notes when a round begins, and when the server has the mean."""

    def __init__(self, rounds: Rounds, **options: Any) -> None:
        super().__init__(**options)
        self.rounds = rounds

    def configure_train(self, *args: Any) -> Iterable[Message]:
        """As FedAvg."""
        self.rounds.started()
        return super().configure_train(*args)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """As FedAvg, which would go on without the clients that failed."""
        received = list(replies)
        for reply in received:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error}")
        mean = super().aggregate_train(server_round, received)
        self.rounds.trained()
        return mean


def main() -> None:
    """Run a workload's rounds; one JSON object on standard output."""
    options = arguments()
    workload: Workload = options.workload
    rounds, cores = Rounds(), os.cpu_count() or 1
    loop = loop_of(workload)
    server = ServerApp()

    def evaluate(round_idx: int, arrays: ArrayRecord) -> MetricRecord:
        torch.set_num_threads(cores)
        loop.server = list(arrays.to_torch_state_dict().values())
        loop.evaluate()
        if round_idx:
            rounds.evaluated()
        return MetricRecord({"loss": loop.loss, "accuracy": loop.accuracy})

    @server.main()
    def serve(grid: Grid, _: Context) -> None:
        share = workload.cohort / workload.num_clients
        strategy = TimedFedAvg(
            rounds,
            fraction_train=share,
            fraction_evaluate=0.0,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.num_clients,
        )
        strategy.start(
            grid,
            ArrayRecord(loop.model.state_dict()),
            num_rounds=options.rounds,
            evaluate_fn=evaluate,
        )

    with silent():
        run_simulation(
            server,
            client_app(workload),
            num_supernodes=workload.num_clients,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
    show(workload, rounds, loss=loop.loss, accuracy=loop.accuracy)


if __name__ == "__main__":
    main()
