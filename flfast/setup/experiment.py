"""Builds a federation from a checked config and runs it."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig

from flfast.audits.audit import Audit, AuditAtEnd
from flfast.channel.privacy.privacy import Privacy
from flfast.checkpoints.keeper import CheckpointKeeper
from flfast.checkpoints.restore import Restored
from flfast.checkpoints.signals import StopRequests
from flfast.config.combinations import check_composed
from flfast.config.errors import ConfigError, OneRankError
from flfast.config.job import HydraJob
from flfast.config.phases import Phase
from flfast.config.resume_check import finished_before
from flfast.datamodules.node_copies import share_on_node
from flfast.datamodules.sources.image_files import UnreadableImageError
from flfast.distributed.world import World, gather
from flfast.federation.loop import DivergedError, Federation
from flfast.federation.topologies.node_columns import NodeColumns
from flfast.setup.acceptance import accept, build_loggers, end_records
from flfast.setup.all_ranks import on_all_ranks
from flfast.setup.batch_size import find_sizes, use_sizes
from flfast.setup.build import build_sampler, load_for_node
from flfast.setup.components import Components, build_components
from flfast.setup.external_world import check_data_are_equal, check_folder_is_shared
from flfast.setup.machinery import Machinery, build_machinery
from flfast.setup.members import try_models
from flfast.setup.model_check import check_events
from flfast.setup.optimized_metric import check_direction, optimized_metric, without_auto
from flfast.setup.resume import (
    changed_hardware,
    checkpoint_keeper,
    find_resumable,
    previous_decisions,
    resolved_sizes,
    restore_sizes,
    resume,
)
from flfast.setup.robustness import check_cohorts, warn_of_rows
from flfast.setup.user_code import own_failure
from flfast.state.machine import return_freed_memory

log = logging.getLogger(__name__)

_CHECKED_ROUNDS = 100
"""A robust aggregation is refused if all cohorts of these first rounds are too small for it."""


_KNOWN_ERRORS = {
    "Expected more than 1 value per channel": (
        "BatchNorm got a batch of one example, which has no variance to divide by; raise "
        "batch_size, micro_batch or partition.min_samples, or use model.norm=group"
    ),
    "`val_check_interval`": (
        "trainer.val_check_interval is larger than a client's number of batches; allowed: a "
        "share of them in (0, 1], or trainer.check_val_every_n_epoch=null"
    ),
}
"""What is said of a ValueError of torch or Lightning, by words in it."""


Change = Callable[[Federation], None]
"""Changes a federation before its first round."""


def no_change(federation: Federation) -> None:
    """A simulation."""


def run_experiment(
    phases: list[Phase],
    job: HydraJob,
    world: World,
    requests: StopRequests,
    *,
    change: Change = no_change,
) -> float | None:
    """Build a federation from a checked config and run it, as one rank of a world.

    `change` may change it before its first round.

    Returns:
        `optimized_metric` after the last round.

    Raises:
        ConfigError: if data, model or devices refuse the settings on any rank, or if the
            training diverges.
        StoppedError: if a rank received a stop request.
    """
    before = finished_before(phases[0].config, job.folder) if world.rank == 0 else None
    before = gather(world, before)[0]
    if before is not None:
        return before.value
    federation = build(phases, job, world, requests)
    change(federation)
    try:
        history = federation.run()
    except (DivergedError, MisconfigurationException, FileNotFoundError) as error:
        raise ConfigError(str(error)) from error
    except (UnreadableImageError, OneRankError) as error:
        # In a worker process of the loader, the message follows a traceback.
        raise OneRankError(str(error).strip().splitlines()[-1]) from error
    except ValueError as error:
        known = next((said for sign, said in _KNOWN_ERRORS.items() if sign in str(error)), None)
        if known is None:
            raise
        raise OneRankError(known) from error
    except Exception as error:
        message = own_failure(error)
        if message is None:
            raise
        raise OneRankError(message) from error
    finally:
        end_records(federation.loggers)
    site = federation.engine.site
    value = history[-1].get(optimized_metric(phases[0].config, site.module, site.data))
    return None if value is None else float(value)


def build(phases: list[Phase], job: HydraJob, world: World, requests: StopRequests) -> Federation:
    """The federation of a run; a resumed one has the state of its checkpoint; collective.

    Raises:
        ConfigError: if data, model or devices refuse the settings on any rank.
    """
    given, config = phases, phases[0].config
    folder = gather(world, job.folder)[0]
    check_folder_is_shared(world, folder)
    first = world.rank == 0
    found = on_all_ranks(world, lambda: first and find_resumable(config, folder))
    checkpoints = gather(world, found)[0]
    newest = checkpoints[0] if checkpoints else None
    changes = changed_hardware(phases, newest, world)
    phases = restore_sizes(phases, newest, changes)
    load = None if world.local_rank else partial(load_for_node, config, job.own)
    loaded = share_on_node(world, on_all_ranks(world, load))
    own = job.own if loaded is None else replace(job.own, data=loaded)
    components = on_all_ranks(world, partial(build_components, config, own))
    check_data_are_equal(world, components.data)
    phases = without_auto(phases, components.module, components.data)
    on_all_ranks(world, partial(check_events, components.data))
    on_all_ranks(world, partial(try_models, config, components))
    return_freed_memory()
    sizes = on_all_ranks(world, partial(find_sizes, phases, job.folder, components, world))
    phases = use_sizes(phases, gather(world, sizes))
    check_direction(phases[0].config, job.hydra)
    decided = previous_decisions(newest, changes, world)
    machinery = on_all_ranks(
        world, partial(build_machinery, phases, job, components, world, decided)
    )
    restored: Restored | None = None
    if checkpoints:
        site, plans = machinery.engine.site, machinery.plans
        restored = on_all_ranks(world, partial(resume, checkpoints, site, components, plans))
    resolved = resolved_sizes(given, phases)
    keeper = on_all_ranks(
        world, partial(checkpoint_keeper, machinery.engine, config, resolved, folder, requests)
    )
    make = partial(
        build_federation, phases[0].config, job.folder, components, machinery, keeper, restored
    )
    federation = on_all_ranks(world, make)
    loggers = partial(build_loggers, phases[0].config, newest)
    begin = partial(accept, federation, config, job, restored, loggers)
    on_all_ranks(world, begin if first else lambda: None)
    return federation


def build_federation(
    config: DictConfig,
    folder: Path,
    components: Components,
    machinery: Machinery,
    keeper: CheckpointKeeper,
    restored: Restored | None,
) -> Federation:
    """The federation, at round 0 or where the restored run was."""
    engine = machinery.engine
    audit: Audit = instantiate(config.audit)
    federation = Federation(
        algorithm=components.module.algorithm,
        engine=engine,
        data=components.data,
        sampler=build_sampler(config),
        plans=machinery.plans,
        initial=components.initial,
        rounds=_num_rounds(config, components.privacy),
        eval_every=config.eval_every,
        eval_examples=config.eval_examples,
        seed=config.seed,
        recalibrate=config.bn == "recalibrate",
        stop=instantiate(config.stop),
        devices=instantiate(config.devices),
        work=instantiate(config.work),
        make_pace=instantiate(config.pace),
        topology=components.topology,
        callbacks=[NodeColumns(), *machinery.callbacks, keeper, AuditAtEnd(audit)],
        run_dir=folder,
        title=machinery.title,
        server=restored.server if restored else {},
        history=restored.history if restored else [],
    )
    federation.timing.check(machinery.plans(1, []))
    if restored is not None:
        history = restored.history
        engine.channel = replace(engine.channel, memory=restored.channel)
        federation.pace.load_state_dict(
            restored.pace, lambda number: machinery.plans(number, history[:number])
        )
    audit.check(federation)
    # Drawing the first cohort also refuses a sampler that wants more clients than there are.
    checked = range(1, min(federation.rounds, _CHECKED_ROUNDS) + 1)
    pace, sampling = federation.pace.capabilities, federation.sampling.capabilities
    check_composed(config, {**components.capabilities, "pace": pace, "sampler": sampling})
    warn_of_rows(engine.channel.aggregation, federation.algorithm)
    check_cohorts(
        engine.channel.aggregation,
        map(federation.cohort, checked),
        num_selected=config.selection.get("count"),
        most_uploads=federation.pace.most_uploads,
    )
    if engine.channel.secure.check is not None:
        engine.channel.secure.check(max(len(federation.cohort(r).clients) for r in checked))
    return federation


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
