"""A run on real clients: what its processes build, and what server and clients must agree on."""

import hashlib
import json
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, Field, field_validator
from torch.utils._pytree import tree_leaves

from flfast.channel.wire import Count, Message, dtype_of, read_facts, readable
from flfast.checkpoints.folders import checkpoint_folders, round_of
from flfast.config.errors import ConfigError
from flfast.config.job import HydraJob
from flfast.config.own import is_data_module
from flfast.config.phases import AUTO_SIZES, Phase
from flfast.config.values import choice, shown
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.remote_data import SPLITS, Schema, ones_like, schema_of
from flfast.distributed.world import ALONE
from flfast.engines.node import Node
from flfast.engines.remote import Exchange, RemoteCohort, RemoteEvaluation, RemoteTraining
from flfast.federation.loop import Federation
from flfast.federation.paces.sync import ROUNDS
from flfast.setup.build_engine import build_engine
from flfast.setup.learner import learner_of
from flfast.setup.optimized_metric import without_auto
from flfast.setup.plans import build_plans
from flfast.state.config_keys import flat, influence
from flfast.state.version import __version__

PLACES = ("data.root", "data.path", "data.source.root", "data.source.path")
"""Keys that are each client's own: where its examples lie."""

_MOST_EXAMPLES = 2**27
"""Of a client in a split. The server counts them in the memory of their numbers."""

GREETING = "greeting"
"""Kind of the request that a client answers by saying who it is."""

RUN_FILE = "deployment.json"
_REAL: Mapping[str, tuple[Any, ...]] = {
    "mode": ("federated",),
    **dict.fromkeys(("attack", "audit", "faults", "shift"), ("none",)),
    "devices": ("ideal",),
    "work": ("full",),
    "pace": ("sync",),
    "topology": ("star",),
    "pace.deadline": (None,),
    "sampler.dropout": (0,),
    "split.server_examples": (0,),
    "privacy.adaptive_quantile": (None,),  # clients are not told the new clip_norm
    "privacy.secure": (True,),  # whoever knows the seed can compute the noise
    "strategy.name": ("single", "dp"),
    "bn": ("aggregate", "local", "frozen"),  # the server has no examples to recalibrate with
}
"""Keys of what only a simulation has, and the values without it, the first one by default."""


def check_is_real(config: DictConfig, *, seeded_noise: bool = False) -> None:
    """Refuse what only a simulation has, and noise of privacy that everybody can compute.

    Raises:
        ConfigError: naming key, value, and what is allowed.
    """
    for key, allowed in _REAL.items():
        value: Any = OmegaConf.select(config, key, default=allowed[0])
        found = choice(dict(value)) if isinstance(value, DictConfig) else value
        if found not in allowed and not (seeded_noise and key == "privacy.secure"):
            raise ConfigError(
                f"{key}={shown(found)}: only a simulation has this; allowed in a deployment: "
                f"{key}={' or '.join(map(shown, allowed))}"
            )
    for key in AUTO_SIZES:  # machines would choose different numbers
        if config[key] == "auto":
            raise ConfigError(f"{key}=auto: allowed in a deployment: a number")


def fingerprint(config: DictConfig) -> dict[str, str]:
    """A hash of the value of each key that numbers of a run depend on.

    What a user's DataModule gets is each node's own.
    """
    own = ("data.",) if is_data_module(config.data) else PLACES
    plain: Any = OmegaConf.to_container(config, resolve=True)
    return {
        key: hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
        for key, value in flat(plain)
        if influence(key) == "results" and (key == "data._target_" or not key.startswith(own))
    }


def build_client(
    phases: list[Phase], job: HydraJob, given: DictConfig, folder: Path
) -> Callable[[Message], Message]:
    """What answers the requests of a server for the client that `job.objects.client` names.

    `given` is the config that the server must have, too, and `folder` is for its states.

    Raises:
        ConfigError: if data, model or settings do not fit together, or clients have models of
            different architectures.
    """
    learner = learner_of(phases[0].config, job.objects)
    if learner.members is not None:
        raise ConfigError(
            "model=family: real clients have one architecture so far; allowed in a deployment: "
            "other models"
        )
    data, module = learner.data, learner.module
    phases = without_auto(phases, module, data)
    engine, _ = build_engine(phases, job, learner, ALONE, {})
    plans = build_plans(phases, module.model)
    assert job.objects.client is not None
    client_id, _ = job.objects.client
    node = Node(engine, plans, learner.initial, client_id, folder)
    greeting = greet(given, data, client_id)
    return lambda asked: greeting if asked.facts.get("kind") == GREETING else node.answer(asked)


class Greeting(BaseModel):
    """What a client says before round 1: who it is, its settings, and what its examples are.

    Attributes:
        client: number of the client.
        flfast: version of flfast.
        settings: a hash of each setting that numbers of a run depend on (`fingerprint`).
        examples: what its examples look like.
        sizes: number of its examples for training, validation and tests.
    """

    client: Count
    flfast: str
    settings: dict[str, str]
    examples: Schema
    sizes: dict[str, Annotated[int, Field(ge=0, le=_MOST_EXAMPLES)]]

    @field_validator("examples")
    @classmethod
    def _is_possible(cls, examples: Schema) -> Schema:
        numbers = [*examples.input_shape, *examples.target_shape, *examples.categories]
        if not all(0 <= number < 2**31 for number in (examples.num_classes, *numbers)):
            raise ValueError("a size is not in [0, 2^31)")
        if math.prod(examples.input_shape) > _MOST_EXAMPLES:
            raise ValueError(f"input_shape has more than {_MOST_EXAMPLES} numbers")
        rows = [leaf for leaf in tree_leaves(ones_like(examples.samples, 1)) if leaf is not None]
        if sum(leaf.numel() for leaf in rows) > _MOST_EXAMPLES:
            raise ValueError(f"samples have more than {_MOST_EXAMPLES} numbers")
        if examples.task == "module" and not rows:
            raise ValueError("samples have no tensor")
        try:
            dtype_of(examples.input_dtype), dtype_of(examples.target_dtype)
        except TypeError as error:
            raise ValueError(error) from None
        return examples


def greet(config: DictConfig, data: FederatedDataModule, client_id: int) -> Message:
    """The greeting of a client."""
    found = Greeting(
        client=client_id,
        flfast=__version__,
        settings=fingerprint(config),
        examples=schema_of(data.examples),
        sizes={name: len(split.indices) for name, split in data.splits.items()},
    )
    return Message(found.model_dump())


def check_greeting(node: str, message: Message, config: DictConfig, num_clients: int) -> Greeting:
    """What a node has said.

    Raises:
        ConfigError: with the node and the key, if its settings are not those of the server's
            config, or its client is not one of `num_clients`.
        MalformedError: if it is no greeting.
    """
    found = read_facts(Greeting, message)
    where = f"client {found.client} (node {node})"
    if not 0 <= found.client < num_clients:
        raise ConfigError(
            f"node {node}: client-id={found.client}; allowed with {num_clients} clients: 0 to "
            f"{num_clients - 1}"
        )
    _same(where, "flfast", found.flfast, __version__)
    _same(where, "splits", sorted(found.sizes), sorted(SPLITS))
    _same_settings(where, found.settings, fingerprint(config))
    return found


def check_together(
    greetings: Mapping[str, Greeting], num_clients: int
) -> tuple[Schema, dict[str, np.ndarray]]:
    """What examples look like, and how many each of K clients has, int64 [K], by split.

    Raises:
        ConfigError: if two nodes are one client, a client is missing, or examples differ.
    """
    nodes: dict[int, str] = {}
    sizes = {name: np.zeros(num_clients, np.int64) for name in SPLITS}
    expected = next((greeting.examples for greeting in greetings.values()), None)
    for node, greeting in greetings.items():
        other = nodes.setdefault(greeting.client, node)
        if other != node:
            raise ConfigError(
                f"node {node}: client-id={greeting.client}, as node {other} has; allowed: a "
                f"number of its own"
            )
        for key, value in greeting.examples._asdict().items():
            what = "the hash of names of columns and classes" if key == "names" else key
            where = f"client {greeting.client} (node {node}): its examples"
            if key != "samples":
                _same(where, what, value, getattr(expected, key))
        for name in SPLITS:
            sizes[name][greeting.client] = greeting.sizes[name]
    missing = [client_id for client_id in range(num_clients) if client_id not in nodes]
    if expected is None or missing:
        raise ConfigError(f"clients {missing} of {num_clients} do not answer")
    return expected, sizes


def _same(where: str, key: str, value: object, expected: object) -> None:
    if value != expected:
        shown = readable(str(value))
        raise ConfigError(f"{where}: {key} is {shown}, elsewhere it is {expected}")


def _same_settings(where: str, settings: Mapping[str, str], expected: Mapping[str, str]) -> None:
    differing = [key for key in {**expected, **settings} if settings.get(key) != expected.get(key)]
    if differing:
        shown = readable(", ".join(differing[:5]))
        raise ConfigError(
            f"{where}: not the server's {shown}; allowed: the same settings on all machines, "
            f"but for {', '.join(PLACES)} and those of speed and output"
        )


def use_real_clients(
    federation: Federation, exchange: Exchange, *, resumable: bool = True
) -> Federation:
    """The federation with real clients in place of simulated ones.

    `resumable`: the run writes checkpoints, so clients keep states that it may go back to.

    Raises:
        ConfigError: if its protocol of secure aggregation can only be simulated.
    """
    engine, folder = federation.engine, federation.run_dir
    number, launch = next_launch(folder)
    run = {"run": number, "clients": federation.data.num_clients}
    _, keep_first = federation.pace.most_uploads or ("", None)
    oldest = partial(_oldest, folder, resumable)
    cohort = RemoteCohort(exchange, run, launch, oldest, keep_first)
    channel, secure = engine.channel, engine.channel.secure
    if secure.make_round is not None:
        if secure.make_terms is None:
            raise ConfigError(
                f"secure={secure.name}: only a simulation has this; allowed in a deployment: "
                f"secure=masks or secure=none"
            )
        channel = replace(channel, secure=replace(secure, ask=cohort.ask))
    remote = engine.elsewhere(
        lambda site, local: RemoteTraining(site, local, cohort, channel),
        RemoteEvaluation(engine.site, engine.finetune, cohort),
        channel=channel,
    )
    return replace(federation, engine=remote, make_pace=ROUNDS)


def next_launch(folder: Path) -> tuple[str, int]:
    """Number of the run in a folder, which clients know it by, and how often it was launched."""
    path = folder / RUN_FILE
    run, launch = uuid.uuid4().hex, 1
    if path.exists() and checkpoint_folders(folder):
        known = json.loads(path.read_text(encoding="utf-8"))
        run, launch = known["run"], known["launch"] + 1
    path.write_text(json.dumps({"run": run, "launch": launch}) + "\n", encoding="utf-8")
    return run, launch


def _oldest(folder: Path, resumable: bool, round_idx: int) -> int:  # noqa: FBT001
    """The earliest round that the server may go back to while it trains a round."""
    if not resumable:
        return round_idx - 1
    found = checkpoint_folders(folder)  # the first one may still be on its way
    return min(round_of(found[-1]), round_idx - 1) if found else 0
