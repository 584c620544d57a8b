"""The two processes of a deployment: a server, and a client that answers it.

They know nothing of the network in between, which hands them bytes.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from omegaconf import DictConfig

from flfast.api.result import Run
from flfast.api.running import composed, run_composed
from flfast.channel.wire import MalformedError, Message, pack, unpack
from flfast.config.check import check
from flfast.config.composition import without_hydra
from flfast.config.errors import ConfigError
from flfast.config.job import HydraJob
from flfast.config.own import Own
from flfast.config.phases import Phase, compose_phases
from flfast.datamodules.remote_data import RemoteData
from flfast.engines.node import Node
from flfast.engines.remote import Exchange
from flfast.setup.deployment import (
    build_node,
    check_greetings,
    check_is_real,
    greeting,
    use_real_clients,
)

_ALONE = ("strategy=single",)
"""Overrides of every process of a deployment: it trains with one process."""
_GREETING = "greeting"


class Network(Protocol):
    """Sends requests to nodes, which have names, and yields their answers as they come."""

    def __call__(self, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes | str]]:
        """(node, answer); a text is the reason why there is none."""


class Client:
    """A client's process: answers requests, each a function of the request and what it kept.

    Args:
        overrides: as on the command line.
        client_id: number of the client, from 0.
        folder: for what it keeps between requests.
    """

    def __init__(self, *overrides: str, client_id: int, folder: str | Path) -> None:
        self._overrides, self._client_id = overrides, client_id
        self._folder = Path(folder)
        self._build = lru_cache(maxsize=1)(self._built)

    def answer(self, request: bytes) -> bytes:
        """The answer to a request.

        Raises:
            ConfigError: if a setting cannot be run.
            MalformedError: if it is no request of a server.
        """
        message = unpack(request)
        num_clients = message.facts.get("clients")
        if not isinstance(num_clients, int) or not 0 <= self._client_id < num_clients:
            raise MalformedError(
                f"client {self._client_id} of {num_clients} clients; allowed: 0 to one less"
            )
        node, greeting = self._build(num_clients)
        return pack(greeting if message.facts.get("kind") == _GREETING else node.answer(message))

    def _built(self, num_clients: int) -> tuple[Node, Message]:
        own = Own(client=(self._client_id, num_clients))
        phases, job = _prepared(self._overrides, own, self._folder)
        node, data = build_node(phases, job, self._client_id, self._folder / "states")
        return node, greeting(phases[0].config, data, self._client_id)


def serve(*overrides: str, nodes: list[str], network: Network, folder: str | Path) -> Run:
    """Run a federation whose clients are real; its folder is that of a run of the simulator.

    Args:
        overrides: as on the command line; the clients must have the same.
        nodes: names of the nodes, one for each client.
        network: sends them requests.
        folder: of the run; with `"resume=auto"` the run in that folder goes on.

    Raises:
        ConfigError: if a setting cannot be run, or those of a node differ: before round 1.
        RunStopped: on Ctrl-C, SIGTERM or SIGUSR1, after the round and a checkpoint.
    """
    config = composed([*_ALONE, *overrides])
    given = without_hydra(deepcopy(config))
    check_is_real(given)
    asked = pack(Message({"kind": _GREETING, "clients": len(nodes)}))
    found: dict[str, Message] = {}
    for node, answer in network(dict.fromkeys(nodes, asked)):
        if isinstance(answer, str):
            raise ConfigError(f"node {node}: {answer}")
        found[node] = unpack(answer)
    if missing := [node for node in nodes if node not in found]:
        raise ConfigError(f"node {missing[0]}: no answer")
    places, schema, sizes = check_greetings(_filled(config), found)
    own = Own(data=partial(RemoteData, schema, sizes))
    change = partial(use_real_clients, exchange=_by_client(network, places))
    return run_composed(config, own, folder, change)


def _by_client(network: Network, nodes: Mapping[int, str]) -> Exchange:
    clients = {node: client_id for client_id, node in nodes.items()}

    def exchange(requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | str]]:
        asked = {nodes[client_id]: request for client_id, request in requests.items()}
        for node, answer in network(asked):
            yield clients[node], answer

    return exchange


def _filled(config: DictConfig) -> DictConfig:
    """The config that a process runs, which fingerprints are made of."""
    given = without_hydra(deepcopy(config))
    return HydraJob.of(config, given).fill(given)


def _prepared(overrides: tuple[str, ...], own: Own, folder: Path) -> tuple[list[Phase], HydraJob]:
    config = composed([*_ALONE, *overrides])
    config.hydra.runtime.output_dir = str(folder.absolute())
    given = without_hydra(deepcopy(config))
    job = HydraJob.of(config, given, own)
    check(job.fill(given))
    check_is_real(given)
    return compose_phases(job.fill(given), job.compose), job
