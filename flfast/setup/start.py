"""The start of a run in five steps: data, models, learner, engine, federation.

Every rank takes each step. What one rank refuses, all of them refuse, before the next step.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from omegaconf import DictConfig

from flfast.checkpoints.folders import Checkpoint
from flfast.checkpoints.signals import StopRequests
from flfast.config.job import HydraJob
from flfast.config.own import Own
from flfast.config.phases import Phase, replace_auto
from flfast.datamodules.node_copies import share_on_node
from flfast.distributed.world import World, gather
from flfast.federation.loop import Federation
from flfast.setup.acceptance import accept, build_loggers
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
from flfast.setup.optimized_metric import check_direction, without_auto
from flfast.setup.resume import checkpoint_keeper, previous_choices, resume
from flfast.state.machine import return_freed_memory


def build(
    phases: list[Phase],
    job: HydraJob,
    world: World,
    requests: StopRequests,
    checkpoints: Sequence[Checkpoint] = (),
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
