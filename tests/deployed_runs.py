"""Deployments without a network: server and clients hand each other bytes in this process."""

import csv

import torch

import flfast
from flfast.api.deployment import Client, serve
from flfast.channel.wire import unpack

SMALL = (
    *("engine=eager", "model=logistic", "rounds=2", "local_epochs=1", "checkpoint.every=1"),
    *("batch_size=50", "callbacks=files", "~callbacks.curves", "~callbacks.partition_report"),
    *("~callbacks.report_page", "~callbacks.devices_figure", "~callbacks.events_figure"),
)


def unchanged(node, request, answer):  # noqa: ARG001
    return answer


class Nodes:
    """A network whose nodes are clients of this process; `between` changes or drops answers."""

    def __init__(self, words, num, folder, *, fresh=False, between=None):
        self.words, self.num, self.folder = words, num, folder
        self.fresh, self.between = fresh, between or unchanged
        self.clients = [self.client(k) for k in range(num)]
        self.names = [f"node-{k}" for k in range(num)]

    def client(self, k):
        folder = self.folder / f"client-{k}"
        return Client(*self.words, client_id=k, folder=folder, seeded_noise=True)

    def nodes(self):
        return list(self.names)

    def ask(self, requests):
        places = {node: k for k, node in enumerate(self.names)}
        for node in reversed(requests):  # answers come in any order
            k = places[node]
            client = self.client(k) if self.fresh else self.clients[k]
            try:
                answer = client.answer(requests[node])
            except ValueError as error:  # as of Flower's messages
                answer = str(error)
            answer = self.between(node, unpack(requests[node]), answer)
            if answer is not None:
                yield node, answer


def words_of(*overrides, num=2):
    return (*SMALL, f"partition.num_clients={num}", *overrides)


def deployed(folder, *overrides, num=2, **kwargs):
    words = words_of(*overrides, num=num)
    nodes = Nodes(words, num, folder, **kwargs)
    folder = folder / "server"
    return serve(*words, num_clients=num, network=nodes, folder=folder, seeded_noise=True)


def simulated(folder, *overrides, num=2):
    return flfast.run(*words_of(*overrides, num=num), "strategy=single", folder=folder / "sim")


def weights(folder):
    found = [folder / name for name in ("model.pt", "shared.pt") if (folder / name).exists()]
    return torch.load(found[0], weights_only=True)


def assert_equal_runs(folder):
    found, expected = weights(folder / "server"), weights(folder / "sim")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def rows_of(folder):
    """Rows of clients.csv by (round, client), both numbers."""
    with (folder / "server" / "clients.csv").open(newline="") as file:
        return {(int(row["round"]), int(row["client_id"])): row for row in csv.DictReader(file)}
