"""Builds a federation from a checked config and runs it."""

import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig
from torch import nn

from flfast.audits.audit import Audit, AuditAtEnd
from flfast.channel.privacy.privacy import Privacy
from flfast.checkpoints.keeper import CheckpointKeeper
from flfast.checkpoints.restore import Restored
from flfast.checkpoints.signals import StopRequests
from flfast.config.combinations import check_composed
from flfast.config.errors import ConfigError, OneRankError
from flfast.config.job import HydraJob
from flfast.config.own import NOTHING, Own
from flfast.config.phases import Phase
from flfast.config.resume_check import finished_before
from flfast.datamodules.federated import FederatedDataModule, Kinds
from flfast.datamodules.node_copies import share_on_node
from flfast.datamodules.sources.image_files import UnreadableImageError
from flfast.distributed.world import World, gather
from flfast.federation.loop import DivergedError, Federation
from flfast.lit.channels_last import use_channels_last
from flfast.lit.local_module import LocalModule
from flfast.lit.trainers import dtype_of_precision
from flfast.models.recomputed import recompute
from flfast.setup.acceptance import accept, build_loggers, end_records
from flfast.setup.adapters import build_adapter
from flfast.setup.all_ranks import on_all_ranks
from flfast.setup.batch_size import Components, Members, find_sizes, smallest_sizes, use_sizes
from flfast.setup.build import (
    build_algorithm,
    build_data,
    build_models,
    build_optimizer,
    build_sampler,
    build_selection,
    initial_weights,
    load_for_node,
)
from flfast.setup.external_world import check_data_are_equal, check_folder_is_shared
from flfast.setup.machinery import Machinery, build_machinery
from flfast.setup.members import check_agree, try_models
from flfast.setup.optimized_metric import check_direction, optimized_metric, use_metrics
from flfast.setup.protection import build_privacy, protect
from flfast.setup.resume import (
    changed_hardware,
    checkpoint_keeper,
    find_resumable,
    previous_decisions,
    resolved_sizes,
    restore_sizes,
    resume,
)
from flfast.setup.robustness import (
    check_cohorts,
    object_capabilities,
    poison_examples,
    warn_of_rows,
)
from flfast.setup.user_code import own_failure
from flfast.state.machine import keep_freed_memory, return_freed_memory
from flfast.state.weights import convert_weights, read_weights

log = logging.getLogger(__name__)

_CHECKED_ROUNDS = 100
"""A robust aggregation is refused if all cohorts of these first rounds are too small for it."""


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
        if "Expected more than 1 value per channel" not in str(error):
            raise
        raise OneRankError(
            "BatchNorm got a batch of one example, which has no variance to divide by; raise "
            "batch_size, micro_batch or partition.min_samples, or use model.norm=group"
        ) from error
    except Exception as error:
        message = own_failure(error)
        if message is None:
            raise
        raise OneRankError(message) from error
    finally:
        end_records(federation.loggers)
    value = history[-1].get(optimized_metric(phases[0].config, federation.engine.site.module))
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
    on_all_ranks(world, partial(try_models, config, components))
    return_freed_memory()
    sizes = on_all_ranks(world, partial(find_sizes, phases, job.folder, components, world))
    phases = use_sizes(phases, smallest_sizes(gather(world, sizes)))
    phases = use_metrics(phases, components.module)
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
        world,
        partial(checkpoint_keeper, machinery.engine, config, resolved, folder, requests),
    )
    make = partial(
        build_federation, phases[0].config, job.folder, components, machinery, keeper, restored
    )
    federation = on_all_ranks(world, make)
    loggers = partial(build_loggers, phases[0].config, newest)
    begin = partial(accept, federation, config, job, restored, loggers)
    on_all_ranks(world, begin if first else lambda: None)
    return federation


def build_components(config: DictConfig, own: Own = NOTHING) -> Components:
    """Data, model, algorithm, optimizer and initial weights; none depends on the plan."""
    quiet_lightning()
    keep_freed_memory()
    torch.set_num_threads(config.threads)
    # Without this variable, Lightning's ddp divides all cores among its ranks.
    os.environ["OMP_NUM_THREADS"] = str(config.threads)
    data = build_data(config, own)
    models, family, common = build_models(config, data, own)
    privacy = build_privacy(config, data)
    of_model = partial(_of_model, config, data, privacy=privacy, own=own, common=common)
    model, *more = models.values()
    first = of_model(model)
    others = [of_model(model, widest=first.initial) for model in more]
    poison_examples(config, data)
    if family is None:
        return first
    kinds = Kinds(tuple(models), family.members(data.num_clients, config.seed))
    if not others:
        return first
    data.kinds = kinds
    check_agree(config, dict(zip(models, (first, *others), strict=True)))
    return first._replace(members=Members(data.kinds, tuple(others)))


def _of_model(
    config: DictConfig,
    data: FederatedDataModule,
    model: nn.Module,
    *,
    privacy: Privacy,
    own: Own,
    **family: Any,
) -> Components:
    """Components of a run with this model; `family` is what a family offers to algorithms."""
    use_channels_last(model)
    # The data type of means of uploads: what is made of the initial weights keeps theirs.
    dtype = dtype_of_precision(config.trainer.precision)
    convert_weights(model, torch.promote_types(dtype, torch.float32))
    initial = initial_weights(config, model)
    adapted = build_adapter(config, model, initial, data)
    if adapted is not None:
        initial = read_weights(model)
    if config.recompute is not None:
        recompute(model, config.recompute)
    num_clients = data.num_clients
    algorithm = build_algorithm(config, initial, model, own, num_clients=num_clients, **family)
    selected = build_selection(config, algorithm, data)
    capabilities = object_capabilities(config, data, algorithm, selected, privacy, initial)
    check_composed(config, capabilities)
    algorithm = protect(privacy, selected, initial, rounds=config.rounds)
    make_optimizer = build_optimizer(config, model, algorithm)
    module = LocalModule(
        model,
        algorithm,
        make_optimizer,
        data.examples.task_type,
        freeze_batchnorm=config.bn == "frozen",
    )
    if privacy.check_model is not None:  # after bn=frozen has frozen BatchNorm
        privacy.check_model(model)
    return Components(data, module, initial, adapted, privacy, capabilities)


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
        callbacks=[*machinery.callbacks, keeper, AuditAtEnd(audit)],
        run_dir=folder,
        title=machinery.title,
        adapted=components.adapted,
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


def quiet_lightning() -> None:
    """Silence Lightning's log lines about devices and finished fits: there is a fit per client."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning's own use of torch
    # Ranks need no srun: this is said wherever SLURM is installed.
    warnings.filterwarnings("ignore", message="The `srun` command is available")
