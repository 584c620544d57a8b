"""What an actor of Flower's simulation runs: the plain loop, for one client at a time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.plain import PlainLoop
from benchmarks.population import load
from benchmarks.workload import Workload


@lru_cache(maxsize=1)
def loop_of(workload: Workload) -> PlainLoop:
    """The plain loop of this process, made once: an actor trains many clients."""
    return PlainLoop(workload, load(workload, "cpu"))


def client_app(workload: Workload) -> ClientApp:
    """The app that trains one client of the workload."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        loop, client_id = loop_of(workload), int(context.node_config["partition-id"])
        received: Any = message.content["arrays"]
        state = received.to_torch_state_dict()
        num_used = loop.train_from(state.values(), client_id)
        trained = dict(zip(state, loop.params, strict=True))
        arrays = ArrayRecord({name: value.detach() for name, value in trained.items()})
        records: Any = {"arrays": arrays, "metrics": MetricRecord({"num-examples": num_used})}
        return Message(content=RecordDict(records), reply_to=message)

    return app
