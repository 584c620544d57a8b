"""Two rounds of an algorithm with a tiny model, in which all that clients send is watched.

`docs/what_leaves.py` makes tables of them.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn

from flfast.algorithms.contract import Algorithm
from flfast.algorithms.contract.algorithm_capabilities import capabilities_of
from flfast.algorithms.contract.downloads import Download, Downloads
from flfast.channel.channel import DIRECT
from flfast.channel.sent import LocalResult, Sender, Sent
from flfast.channel.sides import ClientSide
from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.fetching import Loading
from flfast.datamodules.splits import Split
from flfast.datamodules.transforms import BatchTransform
from flfast.engines.eager import EagerTraining
from flfast.engines.engine import Engine
from flfast.engines.local_training import Deliver
from flfast.engines.site import Site, facts_of
from flfast.federation.calls import Calls
from flfast.federation.samplers.cohort import Cohort
from flfast.federation.sampling import NOBODY
from flfast.lit.batchnorm import batchnorm_weights
from flfast.lit.local_module import LocalModule
from flfast.lit.trainers import Trainers
from flfast.setup.external_world import quiet_lightning
from flfast.state.capabilities import Capabilities
from flfast.state.injection import call_with
from flfast.state.plan import Batching, RoundPlan
from flfast.state.randomness import seed_torch, torch_generator
from flfast.state.store import ClientStates
from flfast.state.tree import Tree
from flfast.state.weights import read_weights

CONF = Path(__file__).parents[1] / "conf"
INPUTS, FEATURES, CLASSES, CLIENTS, COHORT, PUBLIC = 13, 17, 6, 11, 3, 19
"""All different, so that a shape says what its axes are."""
SHOWN = COHORT - 1
"""The client whose messages are shown."""
_LENGTHS = {"server_steps", "epochs", "head_epochs"}  # what is sent does not depend on them
_PLAN = RoundPlan(
    round_idx=1,
    phase=0,
    lr=0.1,
    batching=Batching(-1),
    local_epochs=1,
    local_steps=None,
    strategy="single",
    shard="clients",
    devices="cpu",
    precision="32-true",
)


class Seen(NamedTuple):
    """What one client did in one call.

    Attributes:
        algorithm: what it was called for.
        round_idx: from 1.
        result: what it trained with, and its final weights; it stays with the client.
        sent: what it sent.
        made_for_it: names of what it downloaded beside the broadcast.
        labels: its examples of each class, float64 [C].
    """

    algorithm: Algorithm
    round_idx: int
    result: LocalResult
    sent: Sent
    made_for_it: frozenset[str]
    labels: Tensor


class Rounds(NamedTuple):
    """What was seen of two rounds of three clients.

    Attributes:
        algorithm: the algorithm.
        initial: weights of the model.
        seen: what each client did, in order.
        state: what the shown client keeps.
        record: what the server keeps of it.
        server: server state.
    """

    algorithm: Algorithm
    initial: Tree
    seen: list[Seen]
    state: Tree
    record: Tree
    server: Tree


class _Watching(EagerTraining):
    """Trains clients, and tells what each of them sends."""

    def __init__(self, site: Site, tell: Callable[[Seen], None]) -> None:
        super().__init__(site)
        self._data, self._tell = site.data, tell
        self._client = ClientSide(site.algorithm, DIRECT)

    def train(
        self, clients: Sequence[int], download: Download, plan: RoundPlan, deliver: Deliver
    ) -> None:
        """See `LocalTraining`."""
        assert isinstance(download, Downloads)

        def watched(results: Iterable[LocalResult]) -> None:
            for result in results:
                self._watch(result, download, plan)
                deliver([result])

        super().train(clients, download, plan, watched)

    def _watch(self, result: LocalResult, download: Downloads, plan: RoundPlan) -> None:
        client_id, round_idx = result.client_id, plan.round_idx
        answer = self._client(result, Sender(client_id, round_idx), {})
        sent_to = frozenset(download.sent_to(torch.tensor([client_id])))
        labels = _labels(self._data, client_id)
        self._tell(Seen(self._client.algorithm, round_idx, result, answer.sent, sent_to, labels))


def run(make: Callable[[nn.Module], Algorithm]) -> Rounds:
    """Two rounds of three clients; `make` makes the algorithm for a model."""
    model = _model(nn.BatchNorm1d(FEATURES))
    algorithm, initial = make(model), read_weights(model)
    seen: list[Seen] = []
    module = LocalModule(model, algorithm, torch.optim.SGD)
    site = Site(module, _data(), Trainers(module, lambda plan: _trainer()), ClientStates())
    calls = {local.name: site.of(local, states=site.states) for local in algorithm.calls}
    engine = Engine(
        site,
        _Watching(site, seen.append),
        calls={name: (own, _Watching(own, seen.append)) for name, own in calls.items()},
    )
    server, cohort = algorithm.server_state(initial), Cohort(np.arange(COHORT), NOBODY)
    for round_idx in (1, 2):
        plan = _PLAN._replace(round_idx=round_idx)
        rnd = Calls(engine, cohort, plan, orders={})
        after = algorithm.one_round(server, rnd)
        if algorithm.record is not None and rnd.uploads is not None:
            site.keep_records(rnd.uploads.clients, algorithm.record.rows(server, rnd.uploads))
        server = after
    clients = [one for one in seen if one.result.client_id < COHORT]  # without the server's own
    state, record = site.states.get(SHOWN) or {}, site.records.get(SHOWN) or {}
    return Rounds(algorithm, initial, clients, state, record, server)


def capabilities(name: str) -> Capabilities:
    """Capabilities of an algorithm for a model without counts, which BatchNorm has."""
    model = _model()
    return capabilities_of(named(name, model), read_weights(model))


def named(name: str, model: nn.Module) -> Algorithm:
    """What `algorithm=NAME` is for a model, with default options."""
    made, initial = instantiate(_options(name)), read_weights(model)
    if isinstance(made, Algorithm):
        return made
    batchnorm = batchnorm_weights(model, initial)
    offers = {"initial": initial, "batchnorm": batchnorm, "common": None, "members": (initial,)}
    numbers = {"num_clients": CLIENTS, "num_public": PUBLIC, "num_classes": CLASSES}
    found: Algorithm = call_with(made, **offers, **numbers, seed=0)
    return found


@cache
def _options(name: str) -> Any:
    """Options of an algorithm; those that follow keys of a run follow those of this one."""
    keys = _keys()
    keys.algorithm = OmegaConf.load(CONF / "algorithm" / f"{name}.yaml")
    options: Any = OmegaConf.to_container(keys.algorithm, resolve=True)
    return {**options, **dict.fromkeys(_LENGTHS & options.keys(), 1)}


@cache
def _keys() -> Any:
    ours = {"rounds": 2, "sampler": {"count": COHORT}, "partition": {"num_clients": CLIENTS}}
    optimizer = {"optimizer": OmegaConf.load(CONF / "optimizer" / "sgd.yaml")}
    return OmegaConf.merge(OmegaConf.load(CONF / "config.yaml"), optimizer, ours)


def _model(*between: nn.Module) -> nn.Module:
    seed_torch(0, "initial weights")
    layers = nn.Linear(INPUTS, FEATURES), *between, nn.Tanh(), nn.Linear(FEATURES, CLASSES)
    return nn.Sequential(*layers)


@cache
def _data() -> FederatedDataModule:
    rng, targets = torch_generator(0, "examples"), torch.arange(200) % CLASSES
    targets[:20] = 0  # no client has equally many examples of all classes
    examples = Examples(
        inputs=torch.randn(len(targets), INPUTS, generator=rng) + targets[:, None],
        targets=targets,
        num_classes=CLASSES,
        input_shape=(INPUTS,),
        transform=BatchTransform(),
    )
    split, loading = Split(0.0, 0.0, server_examples=PUBLIC), Loading(eval_batch_size=1000)
    data = FederatedDataModule(lambda: examples, _owners, seed=0, split=split, loading=loading)
    data.setup()
    return data


def _owners(labels: np.ndarray) -> np.ndarray:
    """Owners of examples: everybody has examples of class c, but client c."""
    owner = np.zeros(len(labels), dtype=np.int64)
    for label in range(CLASSES):
        places, owners = np.flatnonzero(labels == label), np.arange(CLIENTS)
        owner[places] = np.resize(owners[owners != label], len(places))
    return owner


def _labels(data: FederatedDataModule, client_id: int) -> Tensor:
    algorithm = Algorithm(name="", facts=("labels",))
    labels: Tensor = facts_of(algorithm, data, client_id, _PLAN)["labels"]
    return labels


@cache
def _trainer() -> L.Trainer:
    quiet_lightning()
    return new_trainer()


def new_trainer() -> L.Trainer:
    """A Trainer on the CPU that shows and keeps nothing."""
    return L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
