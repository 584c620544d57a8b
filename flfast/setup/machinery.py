"""Builds what runs the rounds: engine, plans and callbacks."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import lightning as L
from hydra.utils import instantiate
from omegaconf import DictConfig

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.channel.channel import Channel
from flfast.config.job import HydraJob
from flfast.config.phases import Phase
from flfast.datamodules.federated import FederatedDataModule
from flfast.distributed.client_state_placement import make_states
from flfast.distributed.world import World
from flfast.engines.engine import Engine
from flfast.engines.fine_tuning import FineTuning
from flfast.engines.local_training import LocalTraining
from flfast.engines.reference import reference_name, reference_site
from flfast.engines.site import Site
from flfast.federation.schedules.adaptive import Plans
from flfast.lit.trainers import Trainers
from flfast.setup.callbacks import build_callbacks
from flfast.setup.components import Components
from flfast.setup.members import with_members
from flfast.setup.optimized_metric import check_metrics
from flfast.setup.plans import build_plans, build_trainer, check_sharding
from flfast.setup.robustness import build_channel
from flfast.state.injection import call_with

log = logging.getLogger(__name__)


class Machinery(NamedTuple):
    """The objects that run the rounds, and a title for figures and tables."""

    engine: Engine
    plans: Plans
    callbacks: list[L.Callback]
    title: str


def build_machinery(
    phases: list[Phase],
    job: HydraJob,
    components: Components,
    world: World,
    decided: dict[str, Any],
) -> Machinery:
    """Engine, plans and callbacks; `decided` is of a resumed run."""
    config = phases[0].config
    data, module = components.data, components.module
    callbacks = build_callbacks(config, data, module.task_type.logged[1], job.own)
    make_trainer = partial(build_trainer, phases, callbacks, job.folder, world)
    plans = build_plans(phases, module.model)
    states, records = (
        make_states(config.client_states, job.folder / name, world)
        for name in ("client_states", "records")
    )
    channel = build_channel(config, data, components.privacy, world)
    keeps = channel.compression.feedback

    def engine_of(one: Components, decided: dict[str, Any]) -> Engine:
        own = one.module
        check_sharding(phases, own.model, own.make_optimizer, world)
        trainers = Trainers(own, make_trainer)
        site = Site(own, data, trainers, states, world, records, one.adapted, keeps)
        return build_engine(config, site, decided, channel)

    def of_member(name: str, member: Components) -> Engine:
        return engine_of(member, decided.setdefault(f"model.of.{name}", {}))

    engine = with_members(engine_of(components, decided), components, of_member)
    check_metrics(config, engine)
    title = describe(config, job.choices, module.algorithm, data)
    for phase in phases:
        plan = plans(phase.start, [])
        opening = title if plan.phase == 0 else f"from round {phase.start}"
        log.info("%s | engine %s, %s", opening, engine.choose(plan), plan.describe())
    return Machinery(engine, plans, callbacks, title)


def build_engine(
    config: DictConfig, site: Site, decided: dict[str, Any], channel: Channel
) -> Engine:
    """The engine of this rank; new values that replace `auto` are added to `decided`."""
    make_training = instantiate(config.engine)
    training: LocalTraining = call_with(make_training, site=site, decided=decided)

    def further(name: str, own: Site) -> tuple[Site, LocalTraining]:
        return own, call_with(make_training, site=own, decided=decided.setdefault(name, {}))

    finetune: FineTuning | None = None
    if config.finetune_epochs:
        plain = site.of(Algorithm(name="fine-tuning"))
        finetune = FineTuning(*further("finetuning", plain), config.finetune_epochs)
    own = replace(site, keeps_residuals=False)  # the server's uploads are not encoded
    calls = {
        local.name: further(f"call {local.name}", base.of(local, states=site.states))
        for base, locals_ in ((site, site.algorithm.calls), (own, site.algorithm.server_calls))
        for local in locals_
    }
    if channel.aggregation.trusted:
        for one in (site.algorithm, *site.algorithm.calls):
            name = reference_name(one.name)
            calls[name] = further(f"call {name}", reference_site(site, one))
    return Engine(site, training, channel=channel, calls=calls, finetune=finetune, decided=decided)


def describe(
    config: DictConfig, choices: Mapping[str, str], algorithm: Algorithm, data: FederatedDataModule
) -> str:
    """The run's title: algorithm, data, partition, shift, model and number of clients."""
    name = algorithm.name if config.mode == "federated" else config.mode
    groups = ("data", "partition", *(["shift"] if data.shift.changes else []), "model")
    chosen = [choices[group] for group in groups]
    return " · ".join([name, *chosen, f"{data.num_clients} clients"])
