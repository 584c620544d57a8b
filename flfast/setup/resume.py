"""Lets a run write checkpoints, and resume from one."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from omegaconf import DictConfig

from flfast.checkpoints.compatibility import digest
from flfast.checkpoints.contents import first_states
from flfast.checkpoints.folders import FORMAT, Checkpoint, checkpoint_folders
from flfast.checkpoints.keeper import CheckpointKeeper
from flfast.checkpoints.policy import Policy
from flfast.checkpoints.restore import Restored, fingerprint, restore
from flfast.config.decision import Decision, decision, plain_config
from flfast.config.phases import AUTO_SIZES, Phase
from flfast.distributed.devices import hardware
from flfast.distributed.world import World, gather
from flfast.engines.engine import Engine
from flfast.engines.site import Site
from flfast.setup.all_ranks import on_all_ranks
from flfast.setup.learner import Learner
from flfast.setup.plans import build_plans
from flfast.state.config_keys import keys_with
from flfast.state.environment import integer
from flfast.state.stop_requests import StopRequests
from flfast.state.tree import Tree
from flfast.state.version import __version__

log = logging.getLogger(__name__)


def decide(config: DictConfig, folder: Path, world: World) -> Decision:
    """What becomes of the run's folder, as rank 0 sees it; collective.

    Raises:
        ConfigError: on every rank, if the folder is refused.
    """
    ask = decision if world.rank == 0 else None
    decided = gather(world, on_all_ranks(world, ask, config, folder))[0]
    if world.rank == 0 and decided.becomes != "unchanged":
        _log(decided, config, folder)
    return decided


def _log(decided: Decision, config: DictConfig, folder: Path) -> None:
    if decided.restarted or config.resume == "auto":
        readable = {checkpoint.path for checkpoint in decided.checkpoints}
        for path in checkpoint_folders(folder):
            if path not in readable:
                log.warning("skipping a broken checkpoint: %s", path)
    newest = decided.newest
    if decided.restarted or integer("TORCHELASTIC_RESTART_COUNT", 0) > 0:
        start = f"round {newest.round_idx}" if newest else "the beginning"
        log.warning("a rank died: all ranks resume from %s", start)
    elif newest is None and config.resume is not None:
        log.info("resume=auto: no checkpoint in %s, a new run begins", folder)


def previous_choices(
    config: DictConfig, newest: Checkpoint | None, world: World
) -> tuple[dict[str, int], dict[str, Any]]:
    """Sizes, and values of this rank, that replaced `auto` in the run that goes on; collective.

    If what `auto` depends on has changed since the checkpoint, `micro_batch` is not among the
    sizes: another device may have less memory. Nor are there values, which is logged: new
    decisions may round differently.
    """
    machine = gather(world, hardware())[0]
    if newest is None:
        return {}, {}
    about, now = newest.about, plain_config(config)
    before = about["config"]
    changes = [key for key in keys_with("auto") if before.get(key) != now[key]]
    changes += ["machine"] * (about.get("machine") != machine)
    changes += ["schedule.phases"] * (before["schedule"]["phases"] != now["schedule"]["phases"])
    kept = about["sizes"].keys() - ({"micro_batch"} if changes else set())
    sizes = {key: about["sizes"][key] for key in kept}
    ranks: list[dict[str, Any]] = about.get("decided", [])
    changes += ["number of ranks"] * (len(ranks) != world.size)
    if changes and any(ranks):
        log.info("changed since the checkpoint: %s; engine=auto decides anew", ", ".join(changes))
    return sizes, {} if changes else ranks[world.rank]


def checkpoint_keeper(
    engine: Engine, given: list[Phase], phases: list[Phase], folder: Path, requests: StopRequests
) -> CheckpointKeeper:
    """The callback that writes checkpoints and stops the run on request.

    The phases `given` have `auto` where the others have numbers.
    """
    plain, site = plain_config(given[0].config), engine.site
    sizes = {
        key: int(new.config[key])
        for old, new in zip(given, phases, strict=True)
        for key in AUTO_SIZES
        if old.config[key] == "auto"
    }

    def about() -> dict[str, Any]:
        return {
            "format": FORMAT,
            "config_digest": digest(plain),
            "config": plain,
            "sizes": sizes,
            "data": fingerprint(site.data),
            "machine": hardware(),
            "versions": {
                "flfast": __version__,
                "torch": torch.__version__,
                "lightning": L.__version__,
            },
        }

    policy = Policy(**plain["checkpoint"])
    return CheckpointKeeper(policy, folder, site.kept, site.world, about, requests)


def first_state(learner: Learner, client_id: int) -> Tree:
    """A client's state before its first round."""
    own = learner.of_client(client_id)
    return first_states(own.module.algorithm, own.initial)[0]


def resume(
    checkpoints: Sequence[Checkpoint], site: Site, learner: Learner, phases: list[Phase]
) -> Restored | None:
    """Restore the newest checkpoint that can be loaded, with the site's states; collective.

    Returns:
        None if there are no checkpoints: a new run begins.

    Raises:
        ValueError: if none can be loaded.
    """
    if not checkpoints:
        return None
    first = partial(first_state, learner)
    restored = restore(checkpoints, site, learner.initial, first_state=first)
    history, last = restored.history, restored.checkpoint.round_idx
    plans = build_plans(phases, learner.module.model)
    for round_idx in range(last, 0, -1):
        before = history[round_idx]["plan/precision"]
        now = plans(round_idx, history[:round_idx]).arithmetic
        if now != before:
            log.warning(
                "trainer.precision=%s, but %s up to round %d: results will differ from a run "
                "without interruption",
                *(now, before, round_idx),
            )
            break
    log.info("resuming after round %d from %s", last, restored.checkpoint.path)
    return restored
