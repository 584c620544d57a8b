"""Builds a saved run again, with its weights, as far as its models need it to predict."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.channel.channel import DIRECT
from flfast.checkpoints.restore import fingerprint, load_server, restore
from flfast.config.errors import ConfigError
from flfast.config.saved_run import SavedRun
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.preprocessing import read_preprocessing
from flfast.distributed.world import ALONE
from flfast.engines.engine import Engine
from flfast.engines.site import Site
from flfast.lit.trainers import Trainers
from flfast.models.adapters.adapted import ADAPTER, FILE, Adapted
from flfast.setup.all_ranks import on_all_ranks
from flfast.setup.build_engine import engine_of_site
from flfast.setup.learner import Learner, learner_of
from flfast.setup.members import with_members
from flfast.setup.optimized_metric import without_auto
from flfast.setup.plans import build_plans, build_trainer
from flfast.setup.resume import first_state
from flfast.state.plan import RoundPlan
from flfast.state.store import ClientStates
from flfast.state.tree import Tree
from flfast.state.weights import load_weights, model_weights, read_state_dict

log = logging.getLogger(__name__)

T = TypeVar("T")


class OpenedRun(NamedTuple):
    """A saved run whose models can predict.

    Attributes:
        saved: folder and config of the run.
        learner: data, model, algorithm and initial weights.
        engine: predicts, and fine-tunes.
        server: server state, or the initial weights if only clients' own models are used.
        plan: the plan of the last round.
        personal: whether clients' own models predict, or the server's.
        origin: file or round that the weights are from.
    """

    saved: SavedRun
    learner: Learner
    engine: Engine
    server: Tree
    plan: RoundPlan
    personal: bool
    origin: str

    @property
    def data(self) -> FederatedDataModule:
        """The population."""
        return self.learner.data


_Loaded = tuple[Callable[[Algorithm], Algorithm], Tree, list[dict[str, Any]], str]
"""What a run has saved: an algorithm of the run -> the one that predicts; server state; rows of
`metrics.csv`; file or round that the weights are from. States of clients are the site's."""


def refused(work: Callable[[], T]) -> T:
    """Run `work`; settings and files that it refuses become a `ConfigError`, as in training."""
    return on_all_ranks(ALONE, work)


def open_run(saved: SavedRun, *, personal: bool | None) -> OpenedRun:
    """Build data, model and algorithm of a run as for training, and load its weights.

    If `personal` is None, clients' own models predict only if the server has no model.

    Raises:
        ConfigError: if the run has no such models, or saved none.
    """
    return refused(lambda: _open(saved, personal=personal))


def _open(saved: SavedRun, *, personal: bool | None) -> OpenedRun:
    learner = learner_of(saved.config, saved.objects, read_preprocessing(saved.folder))
    data, module = learner.data, learner.module
    own = _check_models(module.algorithm, saved, personal=personal)
    if saved.newest is not None and saved.newest.about["data"] != fingerprint(data):
        log.warning("these are not the run's data: clients, labels or inputs differ")
    phases = without_auto(saved.phases, module, data)
    make_trainer = partial(build_trainer, phases, [], saved.folder, ALONE)
    trainers = Trainers(module, make_trainer)
    site = Site(module, data, trainers, ClientStates(), ALONE, adapted=learner.adapted)
    load: Callable[..., _Loaded] = _load_files if saved.checkpoint is None else _load_checkpoint
    algorithm_of, server, rows, origin = load(saved, site, learner, personal=own)

    def engine_of(_: str, member: Learner) -> Engine:
        trainers = Trainers(member.module, make_trainer)
        plain = replace(site, module=member.module, trainers=trainers, adapted=member.adapted)
        predicting = plain.of(algorithm_of(member.module.algorithm), states=site.states)
        return engine_of_site(phases[0].config, predicting, {}, DIRECT)

    engine = with_members(engine_of("", learner), learner, engine_of)
    engine.site.fold_server(server)  # for an export, which does not evaluate
    last = int(rows[-1]["round"]) if rows else int(saved.config.rounds)
    plan = build_plans(phases, module.model)(max(last, 1), rows[:last])
    plan = plan._replace(strategy="single", shard="clients")
    return OpenedRun(saved, learner, engine, server, plan, own, origin)


def _check_models(algorithm: Algorithm, saved: SavedRun, *, personal: bool | None) -> bool:
    """Whether clients' own models predict, if the run has them."""
    own = not algorithm.evaluate_server if personal is None else personal
    if own and saved.model is not None:
        raise ConfigError(
            f"model={saved.model} is a model of the server; allowed: personal=false, for an "
            f"algorithm whose server has a complete model"
        )
    if own and algorithm.personal is None:
        raise ConfigError(
            f"personal=true: clients of algorithm={algorithm.name} have no models of their own; "
            f"allowed: personal=false"
        )
    if not own and not algorithm.evaluate_server:
        raise ConfigError(
            f"personal=false: the server of algorithm={algorithm.name} has no complete model; "
            f"allowed: personal=true"
        )
    return own


def _load_checkpoint(saved: SavedRun, site: Site, learner: Learner, *, personal: bool) -> _Loaded:
    checkpoint, initial = saved.checkpoint, learner.initial
    assert checkpoint is not None
    origin = f"{checkpoint.path}, round {checkpoint.round_idx}"
    if personal:
        first = partial(first_state, learner)
        restored = restore([checkpoint], site, initial, any_data=True, first_state=first)
        chosen = partial(replace, evaluate_server=False)
    else:
        restored = load_server(checkpoint, site.algorithm, initial)
        chosen = partial(replace, personal=None, predict=None)
    return chosen, restored.server, restored.history, origin


def _load_files(saved: SavedRun, site: Site, learner: Learner, *, personal: bool) -> _Loaded:
    """The models that a run wrote at its end, which need no algorithm any more."""
    initial, adapted, algorithm = learner.initial, learner.adapted, site.algorithm
    folds = algorithm.kit.fold is not None
    name = "model.pt" if adapted is None or folds else f"{ADAPTER}/{FILE}"
    path = saved.folder / name if saved.model is None else saved.model
    server = initial
    if algorithm.evaluate_server:
        key = "run" if saved.model is None else "model"
        if not path.is_file():
            raise ConfigError(f"{key}={path}: there is no such file; allowed: checkpoint=last")
        server = _read(path, key, initial, adapted, folds=folds)
        if folds and learner.members is not None:  # each has a base of its own
            for one in learner.members.others:
                _read(path, key, one.initial, one.adapted, folds=True)
    elif saved.config.finetune_epochs and len(site.data.held_out):
        raise ConfigError(
            "finetune_epochs with sampler.holdout_clients: clients that never train begin with "
            "what the server sends, which only checkpoints hold; allowed: checkpoint=last"
        )
    if not personal:
        plain = Algorithm(name=algorithm.name)
        return lambda _: plain, server, saved.rows, str(path)
    folder = saved.folder / "personal"
    for client_id in site.data.candidates.tolist():
        file = folder / f"{site.data.client_file(client_id)}.pt"
        own = learner.of_client(client_id).initial
        site.states.put(client_id, _read_personal(file, algorithm, own))
    return _with_own_models, server, saved.rows, str(folder)


def _with_own_models(algorithm: Algorithm) -> Algorithm:
    """Clients' states are their models."""
    return Algorithm(
        name=algorithm.name,
        evaluate_server=False,
        client_state=model_weights,
        personal=lambda broadcast, client: client,
        predict=algorithm.predict,
    )


def _read(
    path: Path, key: str, initial: Tree, adapted: Adapted | None = None, *, folds: bool = False
) -> Tree:
    found = read_state_dict(str(path), key=key)
    if adapted is not None:
        found = adapted.from_whole(found) if folds else adapted.from_file(found)
    return load_weights(initial, found, source=f"{key}={path}")


def _read_personal(path: Path, algorithm: Algorithm, initial: Tree) -> Tree:
    """A client's own model, with the leaves beside the model if `predict` reads them."""
    if not path.is_file():
        raise ConfigError(
            f"personal=true: there is no {path}; allowed: checkpoint=last, or a run with "
            f"callbacks.final_weights.max_personal=null, which saves all clients' own models"
        )
    if algorithm.predict is None:
        return _read(path, "run", initial)
    found = read_state_dict(str(path), key="run")
    buffers = initial["buffers"].keys()
    return {
        "params": {name: leaf for name, leaf in found.items() if name not in buffers},
        "buffers": {name: leaf for name, leaf in found.items() if name in buffers},
    }
