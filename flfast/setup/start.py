"""A run: its start in five steps (data, models, learner, engine, federation), rounds, its end.

Every rank takes each step. What one rank refuses, all of them refuse, before the next step.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from lightning.fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig

from flfast.checkpoints.folders import Checkpoint
from flfast.config.errors import ConfigError, OneRankError
from flfast.config.job import HydraJob
from flfast.config.own import Own
from flfast.config.phases import Phase, replace_auto
from flfast.datamodules.node_copies import share_on_node
from flfast.datamodules.sources.image_files import UnreadableImageError
from flfast.distributed.world import World, gather
from flfast.federation.loop import DivergedError, Federation
from flfast.setup.acceptance import accept, build_loggers, end_records
from flfast.setup.all_ranks import on_all_ranks
from flfast.setup.batch_size import find_sizes, use_sizes
from flfast.setup.build_data import build_data, load_for_node
from flfast.setup.build_engine import build_engine
from flfast.setup.build_federation import build_federation
from flfast.setup.build_models import initial_models
from flfast.setup.external_world import (
    check_data_are_equal,
    check_folder_is_shared,
    prepare_process,
)
from flfast.setup.learner import Learner, build_learner
from flfast.setup.members import try_models
from flfast.setup.model_check import check_events
from flfast.setup.optimized_metric import check_direction, optimized_metric, without_auto
from flfast.setup.resume import checkpoint_keeper, decide, previous_choices, resume
from flfast.setup.user_code import own_failure
from flfast.state.machine import return_freed_memory
from flfast.state.stop_requests import StopRequests

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

Change = Callable[[Federation], Federation]
"""Gives what runs in place of a simulation."""


def run_experiment(
    phases: list[Phase],
    job: HydraJob,
    world: World,
    requests: StopRequests,
    *,
    change: Change | None = None,
) -> float | None:
    """Build a federation from a checked config and run it, as one rank of a world.

    `change` gives what runs in place of the simulation.

    Returns:
        `optimized_metric` after the last round.

    Raises:
        ConfigError: if data, model or devices refuse the settings on any rank, or if the
            training diverges.
        StoppedError: if a rank received a stop request.
    """
    decided = decide(phases[0].config, job.folder, world)
    if decided.becomes == "unchanged":
        return decided.value
    federation = build(phases, job, world, requests, decided.checkpoints)
    federation = change(federation) if change else federation
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


def build(
    phases: list[Phase],
    job: HydraJob,
    world: World,
    requests: StopRequests,
    checkpoints: Sequence[Checkpoint],
) -> Federation:
    """The federation of a run; collective.

    A run that goes on has the state of the first of its checkpoints that can be loaded.

    Raises:
        ConfigError: if data, model or devices refuse the settings on any rank.
    """
    step = partial(on_all_ranks, world)
    folder = gather(world, job.folder)[0]
    check_folder_is_shared(world, folder)
    given, config, newest = phases, phases[0].config, next(iter(checkpoints), None)
    sizes, decided = previous_choices(config, newest, world)
    prepare_process(config)
    objects = _with_examples_of_node(job.objects, config, world)

    data = step(build_data, config, objects)
    check_data_are_equal(world, data)
    models = step(initial_models, config, data, objects)
    learner = step(build_learner, config, data, models, objects)
    phases = _decided(replace_auto(phases, sizes), job, learner, world)
    engine, callbacks = step(build_engine, phases, job, learner, world, decided)
    keeper = step(checkpoint_keeper, engine, given, phases, folder, requests)
    restored = step(resume, checkpoints, engine.site, learner, phases)
    parts = learner, engine, [*callbacks, keeper], restored
    federation = step(build_federation, phases, job, *parts)
    return_freed_memory()  # of the trials of engines

    loggers = partial(build_loggers, phases[0].config, newest)
    step(accept if world.rank == 0 else None, federation, config, job, restored, loggers)
    return federation


def _with_examples_of_node(objects: Own, config: DictConfig, world: World) -> Own:
    """The objects, with examples that one rank of each node has read."""
    load = None if world.local_rank else load_for_node
    examples = share_on_node(world, on_all_ranks(world, load, config, objects))
    return objects if examples is None else replace(objects, data=examples)


def _decided(phases: list[Phase], job: HydraJob, learner: Learner, world: World) -> list[Phase]:
    """The phases with values in place of every `auto`; the models are tried."""
    step, config = partial(on_all_ranks, world), phases[0].config
    phases = without_auto(phases, learner.module, learner.data)
    step(check_events, learner.data)
    step(try_models, config, learner)
    return_freed_memory()
    sizes = step(find_sizes, phases, job.folder, learner, world)
    phases = use_sizes(phases, gather(world, sizes))
    check_direction(phases[0].config, job.hydra)
    return phases
