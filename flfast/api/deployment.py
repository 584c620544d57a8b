"""The two processes of a deployment: a server, and a client that answers it.

They know nothing of the network in between, which hands them bytes.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np
from omegaconf import DictConfig

from flfast.api.result import Run
from flfast.api.running import composed, filled, run_composed
from flfast.channel.wire import MalformedError, Message, pack, unpack
from flfast.config.decision import decision
from flfast.config.errors import ConfigError
from flfast.config.job import HydraJob
from flfast.config.own import NOTHING, Own
from flfast.datamodules.remote_data import RemoteData, Schema
from flfast.setup.real_clients import (
    GREETING,
    Greeting,
    build_client,
    check_greeting,
    check_is_real,
    check_together,
    use_real_clients,
)
from flfast.state.real_folder import literal, real_folder

log = logging.getLogger(__name__)

_MOST_CLIENTS = 2**24
"""A client's process keeps a number for each."""


class Network(Protocol):
    """Nodes, which have names, and a way to ask them."""

    def nodes(self) -> Sequence[str]:
        """The nodes that can be asked now."""

    def ask(self, requests: Mapping[str, bytes]) -> Iterator[tuple[str, bytes | str]]:
        """Send each node its request; (node, answer) as they come.

        A text in place of an answer is the reason why there is none.
        """


class Client:
    """A client's process: answers requests, each a function of the request and what it kept.

    Args:
        overrides: as on the command line.
        client_id: number of the client, from 0.
        folder: for what it keeps between requests.
        seeded_noise: allow noise of privacy that everybody can compute, for tests.
    """

    def __init__(
        self, *overrides: str, client_id: int, folder: str | Path, seeded_noise: bool = False
    ) -> None:
        self._overrides, self._client_id = overrides, client_id
        self._seeded_noise = seeded_noise
        self._folder = real_folder(folder)
        self._build = lru_cache(maxsize=1)(self._built)

    def answer(self, request: bytes) -> bytes:
        """The answer to a request.

        Raises:
            ConfigError: if a setting cannot be run.
            MalformedError: if it is no request of a server.
        """
        message = unpack(request)
        num_clients = message.facts.get("clients")
        if type(num_clients) is not int or not 0 <= self._client_id < num_clients <= _MOST_CLIENTS:
            raise MalformedError(
                f"client {self._client_id} of {num_clients} clients; allowed: 0 to one less"
            )
        return pack(self._build(num_clients)(message))

    def _built(self, num_clients: int) -> Callable[[Message], Message]:
        objects = Own(client=(self._client_id, num_clients))
        config, given = checked(self._overrides, seeded_noise=self._seeded_noise)
        config.hydra.runtime.output_dir = literal(self._folder)
        job = HydraJob.of(config, objects=objects)
        return build_client(job.phases(), job, given, self._folder / "states")


def serve(
    *overrides: str,
    num_clients: int,
    network: Network,
    folder: str | Path,
    seeded_noise: bool = False,
) -> Run:
    """Run a federation whose clients are real; its folder is that of a run of the simulator.

    Args:
        overrides: as on the command line; the clients must have the same.
        num_clients: number of clients; as many nodes must be there.
        network: asks them.
        folder: of the run; with `"resume=auto"` the run in that folder goes on.
        seeded_noise: as of `Client`.

    Raises:
        ConfigError: if a setting cannot be run, or those of a node differ: before round 1.
        RunStopped: on Ctrl-C, SIGTERM or SIGUSR1, after the round and a checkpoint.
    """
    config, given = checked(overrides, seeded_noise=seeded_noise)
    decision(given, real_folder(folder), setting=f"folder={folder}")  # before clients are asked
    clients = _Clients(network, given, num_clients)
    schema, sizes = clients.greet_all()
    objects = Own(data=partial(RemoteData, schema, sizes))
    resumable = given.checkpoint.every != 0
    change = partial(use_real_clients, exchange=clients, resumable=resumable)
    return run_composed(config, objects, folder, change=change)


class _Clients:
    """Asks clients, wherever they are now; see `Exchange`."""

    def __init__(self, network: Network, config: DictConfig, num_clients: int) -> None:
        self._network, self._config, self._num = network, config, num_clients
        self._known: dict[str, Greeting | None] = {}  # None: a node that is refused
        self._greetings: dict[int, Greeting] = {}

    def greet_all(self) -> tuple[Schema, dict[str, np.ndarray]]:
        """Ask all nodes who they are. Nodes that do not greet are left out if all clients do.

        Raises:
            ConfigError: if a client is missing, or settings differ.
        """
        found: dict[str, Greeting] = {}
        problems, strange = list[str](), list[str]()
        for node, answer in self._greeted(self._network.nodes()):
            try:
                found[node] = self._greeting(node, answer)
            except MalformedError as error:  # noqa: PERF203 - each node is told
                strange.append(str(error))
            except ConfigError as error:
                problems.append(str(error))
        is_whole = len({one.client for one in found.values()}) == self._num
        if problems or (strange and not is_whole):
            raise ConfigError("\n".join([*problems, *strange]))
        for line in strange:
            log.warning("%s; it is left out", line)
        self._known.update(found)
        self._greetings = {one.client: one for one in found.values()}
        return check_together(found, self._num)

    def _greeted(self, nodes: Iterable[str]) -> Iterator[tuple[str, bytes | str]]:
        asked = pack(Message({"kind": GREETING, "clients": self._num}))
        requests = dict.fromkeys(nodes, asked)
        return self._network.ask(requests) if requests else iter(())

    def _greeting(self, node: str, answer: bytes | str) -> Greeting:
        try:
            if isinstance(answer, str):
                raise MalformedError(answer)
            return check_greeting(node, unpack(answer), self._config, self._num)
        except MalformedError as error:
            raise MalformedError(f"node {node}: {error}") from error

    def _places(self) -> dict[int, str]:
        """The node of each client that can be asked; nodes that are new are greeted."""
        here = self._network.nodes()
        for node, answer in self._greeted([node for node in here if node not in self._known]):
            try:
                self._known[node] = found = self._greeting(node, answer)
                if found != self._greetings[found.client]:
                    raise ConfigError(f"node {node}: client {found.client} has other examples now")
            except (ConfigError, MalformedError) as error:  # noqa: PERF203 - the others go on
                log.warning("%s", error)
                if not isinstance(answer, str):  # otherwise it is asked again
                    self._known[node] = None
        places: dict[int, str] = {}
        for node, one in self._known.items():
            if one is not None and node in here:  # nobody takes the place of a node that is here
                places.setdefault(one.client, node)
        return places

    def __call__(self, requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | str]]:
        """See `Exchange`."""
        places = self._places()
        clients = {places[client_id]: client_id for client_id in requests if client_id in places}
        for client_id in requests.keys() - places.keys():
            yield client_id, "not connected"
        asked = {node: requests[client_id] for node, client_id in clients.items()}
        for node, answer in self._network.ask(asked):
            yield clients[node], answer


def checked(
    overrides: Sequence[str], *, seeded_noise: bool = False
) -> tuple[DictConfig, DictConfig]:
    """The config of a deployment with Hydra's own node, and the one that runs.

    Raises:
        ConfigError: if a setting is wrong, or only a simulation has it.
    """
    config = composed(["strategy=single", *overrides])  # unless told, it trains with one process
    given = filled(config, NOTHING)
    check_is_real(given, seeded_noise=seeded_noise)
    return config, given
