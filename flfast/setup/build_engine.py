"""Builds the engine of a rank: its site, and what trains clients."""

from dataclasses import replace
from functools import partial
from typing import Any

import lightning as L
from hydra.utils import instantiate
from omegaconf import DictConfig

from flfast.algorithms.contract.algorithm import Algorithm, ServerCall
from flfast.channel.channel import Channel
from flfast.config.job import HydraJob
from flfast.config.phases import Phase
from flfast.distributed.assignment import make_states
from flfast.distributed.world import World
from flfast.engines.engine import Engine
from flfast.engines.fine_tuning import FineTuning
from flfast.engines.local_training import LocalTraining
from flfast.engines.site import Site, reference_name, reference_site
from flfast.lit.trainers import Trainers
from flfast.setup.callbacks import build_callbacks
from flfast.setup.learner import Learner
from flfast.setup.members import with_members
from flfast.setup.optimized_metric import check_metrics
from flfast.setup.plans import build_trainer, check_sharding
from flfast.setup.robustness import build_channel
from flfast.state.injection import call_with


def build_engine(
    phases: list[Phase],
    job: HydraJob,
    learner: Learner,
    world: World,
    decided: dict[str, Any],
) -> tuple[Engine, list[L.Callback]]:
    """The engine of this rank, and the callbacks of its Trainers; `decided` is of an earlier run.

    Raises:
        ConfigError: if it cannot train the models, or a metric will not be measured.
    """
    config, data = phases[0].config, learner.data
    callbacks = build_callbacks(config, data, learner.module.task_type.monitored, job.objects)
    make_trainer = partial(build_trainer, phases, callbacks, job.folder, world)
    states, records = (
        make_states(config.client_states, job.folder / name, world)
        for name in ("client_states", "records")
    )
    channel = build_channel(config, data, learner.privacy, world)
    keeps = channel.compression.feedback

    def engine_of(member: Learner, decided: dict[str, Any]) -> Engine:
        module = member.module
        check_sharding(phases, module.model, module.make_optimizer, world)
        trainers = Trainers(module, make_trainer)
        known = member.adapted, keeps, member.initial
        site = Site(module, data, trainers, states, world, records, *known)
        return engine_of_site(config, site, decided, channel)

    def of_member(name: str, member: Learner) -> Engine:
        return engine_of(member, decided.setdefault(f"model.of.{name}", {}))

    engine = with_members(engine_of(learner, decided), learner, of_member)
    check_metrics(config, engine)
    return engine, callbacks


def engine_of_site(
    config: DictConfig, site: Site, decided: dict[str, Any], channel: Channel
) -> Engine:
    """The engine of a site; new values that replace `auto` are added to `decided`."""
    make_training = instantiate(config.engine)
    training: LocalTraining = call_with(make_training, site=site, decided=decided)

    def further(name: str, site: Site) -> tuple[Site, LocalTraining]:
        return site, call_with(make_training, site=site, decided=decided.setdefault(name, {}))

    finetune: FineTuning | None = None
    if config.finetune_epochs:
        plain = site.of(Algorithm(name="fine-tuning"))
        finetune = FineTuning(*further("finetuning", plain), config.finetune_epochs)
    on_server = replace(site, keeps_residuals=False)  # the server's uploads are not encoded
    calls = {}
    for local in site.algorithm.calls:
        base = on_server if isinstance(local, ServerCall) else site
        called = base.of(local, states=site.states)
        calls[local.name] = further(f"call {local.name}", called)
    if channel.aggregation.trusted:
        for one in (site.algorithm, *site.algorithm.cohort_calls):
            name = reference_name(one.name)
            calls[name] = further(f"call {name}", reference_site(site, one))
    return Engine(site, training, channel=channel, calls=calls, finetune=finetune, decided=decided)
