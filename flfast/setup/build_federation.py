"""Builds the federation: plans, pace, sampler and what else the rounds need beside the engine."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import lightning as L
from hydra.utils import instantiate
from omegaconf import DictConfig

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.audits.audit import Audit, AuditAtEnd
from flfast.channel.privacy.privacy import Privacy
from flfast.checkpoints.restore import Restored
from flfast.config.combinations import check_composed
from flfast.config.job import HydraJob
from flfast.config.phases import Phase
from flfast.datamodules.federated import FederatedDataModule
from flfast.engines.engine import Engine
from flfast.federation.loop import Federation
from flfast.federation.samplers.cohort import Cohort
from flfast.federation.samplers.uniform import uniform
from flfast.federation.topologies.node_columns import NodeColumns
from flfast.setup.learner import Learner
from flfast.setup.plans import build_plans
from flfast.setup.robustness import check_cohorts, warn_of_rows

log = logging.getLogger(__name__)

_CHECKED_ROUNDS = 100
"""A robust aggregation is refused if all cohorts of these first rounds are too small for it."""


def build_federation(
    phases: list[Phase],
    job: HydraJob,
    learner: Learner,
    engine: Engine,
    callbacks: Sequence[L.Callback],
    restored: Restored | None,
) -> Federation:
    """The federation, at round 0 or where the restored run was.

    Raises:
        ConfigError: if pace, sampler or aggregation do not fit together.
    """
    config, plans = phases[0].config, build_plans(phases, learner.module.model)
    title = describe(config, job.choices, learner.module.algorithm, learner.data)
    for phase in phases:
        plan = plans(phase.start, [])
        opening = title if plan.phase == 0 else f"from round {phase.start}"
        log.info("%s | engine %s, %s", opening, engine.choose(plan), plan.describe())
    audit: Audit = instantiate(config.audit)
    federation = Federation(
        algorithm=learner.module.algorithm,
        engine=engine,
        data=learner.data,
        sampler=build_sampler(config),
        plans=plans,
        initial=learner.initial,
        rounds=_num_rounds(config, learner.privacy),
        eval_every=config.eval_every,
        eval_examples=config.eval_examples,
        seed=config.seed,
        recalibrate=config.bn == "recalibrate",
        stop=instantiate(config.stop),
        devices=instantiate(config.devices),
        work=instantiate(config.work),
        make_pace=instantiate(config.pace),
        topology=learner.topology,
        callbacks=[NodeColumns(), *callbacks, AuditAtEnd(audit)],
        run_dir=job.folder,
        title=title,
        server=restored.server if restored else {},
        history=restored.history if restored else [],
    )
    federation.timing.check(plans(1, []))
    if restored is not None:
        history = restored.history
        engine.remember(restored.channel)
        federation.pace.load_state_dict(
            restored.pace, lambda number: plans(number, history[:number])
        )
    audit.check(federation)
    _check(config, learner, federation)
    return federation


def _check(config: DictConfig, learner: Learner, federation: Federation) -> None:
    """Refuse a pace, sampler or aggregation that does not fit the others."""
    channel, pace = federation.engine.channel, federation.pace
    # Drawing the first cohort also refuses a sampler that wants more clients than there are.
    checked = range(1, min(federation.rounds, _CHECKED_ROUNDS) + 1)
    drawing = {"pace": pace.capabilities, "sampler": federation.sampling.capabilities}
    check_composed(config, {**learner.capabilities, **drawing})
    warn_of_rows(channel.aggregation, federation.algorithm)
    check_cohorts(
        channel.aggregation,
        map(federation.cohort, checked),
        num_selected=config.selection.get("count"),
        most_uploads=pace.most_uploads,
    )
    if channel.secure.check is not None:
        channel.secure.check(max(len(federation.cohort(r).clients) for r in checked))


def build_sampler(config: DictConfig) -> Callable[..., Cohort]:
    """(num_clients, rng) -> cohort; the centralised baseline's only client is always drawn."""
    if config.mode == "centralized":
        return partial(uniform, fraction=1.0, count=None, dropout=0.0)
    return instantiate({k: v for k, v in config.sampler.items() if k != "holdout_clients"})


def _num_rounds(config: DictConfig, privacy: Privacy) -> int:
    """Rounds of the run; the privacy budget may allow fewer than were asked for."""
    rounds: int = 1 if config.trainer.fast_dev_run else config.rounds
    if privacy.rounds is None or privacy.rounds >= rounds:
        return rounds
    log.warning(
        "privacy.max_epsilon=%g ends the run after round %d of %d",
        *(config.privacy.max_epsilon, privacy.rounds, rounds),
    )
    return privacy.rounds


def describe(
    config: DictConfig, choices: Mapping[str, str], algorithm: Algorithm, data: FederatedDataModule
) -> str:
    """The run's title: algorithm, data, partition, shift, model and number of clients."""
    name = algorithm.name if config.mode == "federated" else config.mode
    groups = ("data", "partition", *(["shift"] if data.shift.changes else []), "model")
    chosen = [choices[group] for group in groups]
    return " · ".join([name, *chosen, f"{data.num_clients} clients"])
