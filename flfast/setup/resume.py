"""Lets a run write checkpoints, and resume from one."""

import logging
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from omegaconf import DictConfig, OmegaConf

from flfast.checkpoints.compatibility import digest
from flfast.checkpoints.contents import first_states
from flfast.checkpoints.folders import FORMAT, Checkpoint, checkpoint_folders, find_checkpoints
from flfast.checkpoints.keeper import CheckpointKeeper
from flfast.checkpoints.policy import Policy
from flfast.checkpoints.restore import Restored, fingerprint, restore
from flfast.checkpoints.signals import StopRequests
from flfast.config.phases import AUTO_SIZES, Phase, replace_auto
from flfast.config.resume_check import began_before
from flfast.distributed.devices import hardware
from flfast.distributed.world import World, gather
from flfast.engines.engine import Engine
from flfast.engines.site import Site
from flfast.setup.all_ranks import on_all_ranks
from flfast.setup.learner import Learner
from flfast.setup.plans import build_plans
from flfast.state.config_keys import keys_with
from flfast.state.environment import integer
from flfast.state.tree import Tree
from flfast.state.version import __version__

log = logging.getLogger(__name__)


class EarlierRun(NamedTuple):
    """What the folder has of the run that goes on; nothing of it, if a new run begins.

    Attributes:
        given: the phases as they were given, with `auto`.
        phases: with the sizes of the earlier run in place of `auto`.
        checkpoints: that the run may go on from, newest first.
        decided: values that replaced `auto` on this rank, by key.
    """

    given: list[Phase]
    phases: list[Phase]
    checkpoints: list[Checkpoint]
    decided: dict[str, Any]

    @property
    def newest(self) -> Checkpoint | None:
        """The newest checkpoint."""
        return self.checkpoints[0] if self.checkpoints else None

    def restored(self, site: Site, learner: Learner, phases: list[Phase]) -> Restored | None:
        """The state to go on from, with the site's; None for a new run; collective."""
        return resume(self.checkpoints, site, learner, phases) if self.checkpoints else None


def earlier_run(phases: list[Phase], folder: Path, world: World) -> EarlierRun:
    """The run that goes on in a folder; collective.

    Raises:
        ConfigError: if `resume` names a checkpoint that does not exist or cannot be read.
    """
    find = find_resumable if world.rank == 0 else None
    checkpoints = gather(world, on_all_ranks(world, find, phases[0].config, folder))[0]
    newest = checkpoints[0] if checkpoints else None
    changes = changed_hardware(phases, newest, world)
    decided = previous_decisions(newest, changes, world)
    return EarlierRun(phases, restore_sizes(phases, newest, changes), checkpoints, decided)


def find_resumable(config: DictConfig, folder: Path) -> list[Checkpoint]:
    """Checkpoints that the run may resume from, newest first; none for a new run.

    Raises:
        ValueError: if `resume` names a checkpoint that does not exist or cannot be read.
    """
    restarted = began_before(config, folder)
    found = _find_readable(folder) if restarted or config.resume == "auto" else []
    if not found and config.resume not in {None, "auto"}:
        found = find_checkpoints(config.resume, folder)
    if restarted or integer("TORCHELASTIC_RESTART_COUNT", 0) > 0:
        start = f"round {found[0].round_idx}" if found else "the beginning"
        log.warning("a rank died: all ranks resume from %s", start)
    elif not found and config.resume is not None:
        log.info("resume=auto: no checkpoint in %s, a new run begins", folder)
    return found


def _find_readable(folder: Path) -> list[Checkpoint]:
    found = find_checkpoints("auto", folder)
    readable = {checkpoint.path for checkpoint in found}
    for path in checkpoint_folders(folder):
        if path not in readable:
            log.warning("skipping a broken checkpoint: %s", path)
    return found


def restore_sizes(
    phases: list[Phase], checkpoint: Checkpoint | None, changes: list[str]
) -> list[Phase]:
    """Phases with the resumed run's sizes in place of `auto`.

    On other hardware `micro_batch` stays `auto`: another device may have less memory.
    """
    if checkpoint is None:
        return phases
    sizes = dict(checkpoint.about["sizes"])
    if changes:
        sizes.pop("micro_batch", None)
    return replace_auto(phases, sizes)


def previous_decisions(
    checkpoint: Checkpoint | None, changes: list[str], world: World
) -> dict[str, Any]:
    """Values that replaced `auto` on this rank in the run that is resumed.

    Empty on other hardware, which is logged: new decisions may round differently.
    """
    ranks: list[dict[str, Any]] = []
    if checkpoint is not None:
        ranks = checkpoint.about.get("decided", [])
    if not any(ranks):
        return {}
    if len(ranks) != world.size:
        changes = [*changes, "number of ranks"]
    if changes:
        log.info("changed since the checkpoint: %s; engine=auto decides anew", ", ".join(changes))
        return {}
    return ranks[world.rank]


def changed_hardware(
    phases: list[Phase], checkpoint: Checkpoint | None, world: World
) -> list[str]:
    """Settings that `auto` depends on and that changed since the checkpoint; collective.

    Returns:
        Keys of the config; `machine` stands for rank 0's hardware.
    """
    machine = gather(world, hardware())[0]
    if checkpoint is None:
        return []
    before, now = checkpoint.about["config"], _plain_values(phases[0].config)
    changes = [key for key in keys_with("auto") if before.get(key) != now[key]]
    changes += ["machine"] * (checkpoint.about.get("machine") != machine)
    same = before["schedule"]["phases"] == now["schedule"]["phases"]
    return changes if same else [*changes, "schedule.phases"]


def _plain_values(config: DictConfig) -> dict[str, Any]:
    plain: Any = OmegaConf.to_container(config, resolve=True)
    return plain


def resolved_sizes(before: list[Phase], after: list[Phase]) -> dict[str, int]:
    """The number that replaced each `auto` between two versions of the phases, by key."""
    return {
        key: int(new.config[key])
        for old, new in zip(before, after, strict=True)
        for key in AUTO_SIZES
        if old.config[key] == "auto"
    }


def checkpoint_keeper(
    engine: Engine, given: list[Phase], phases: list[Phase], folder: Path, requests: StopRequests
) -> CheckpointKeeper:
    """The callback that writes checkpoints and stops the run on request.

    The phases `given` have `auto` where the others have numbers.
    """
    plain, site, sizes = _plain_values(given[0].config), engine.site, resolved_sizes(given, phases)

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
    checkpoints: list[Checkpoint], site: Site, learner: Learner, phases: list[Phase]
) -> Restored:
    """Restore the newest checkpoint that can be loaded, with the site's states; collective.

    Raises:
        ValueError: if none can be loaded.
    """
    first = partial(first_state, learner)
    restored = restore(checkpoints, site, learner.initial, first_state=first)
    history, last = restored.history, restored.checkpoint.round_idx
    plans = build_plans(phases, learner.module.model)
    for round_idx in range(last, 0, -1):
        before = history[round_idx]["plan/precision"]
        now = plans(round_idx, history[:round_idx]).precision
        if now != before:
            log.warning(
                "trainer.precision=%s, but %s up to round %d: results will differ from a run "
                "without interruption",
                *(now, before, round_idx),
            )
            break
    log.info("resuming after round %d from %s", last, restored.checkpoint.path)
    return restored
