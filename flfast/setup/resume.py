"""From the config to a run that leaves checkpoints, and goes on from one."""

import logging
from copy import deepcopy
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from flfast.checkpoints.compatibility import digest
from flfast.checkpoints.folders import FORMAT, Checkpoint, find, finished
from flfast.checkpoints.keeper import Checkpoints
from flfast.checkpoints.policy import Policy
from flfast.checkpoints.restore import fingerprint, restore
from flfast.checkpoints.signals import StopRequests
from flfast.config.phases import Phase
from flfast.distributed.devices import hardware
from flfast.distributed.world import World, gather, num_restarts
from flfast.federation.loop import Federation
from flfast.setup.build import run_dir

log = logging.getLogger(__name__)

_HARDWARE = ("callbacks", "engine", "loader", "strategy", "threads", "trainer")
"""Keys, beside those of phases, on which it depends which engine can run, and how."""

_LOGGER_IDS = {"WandbLogger": "id", "MLFlowLogger": "run_id"}


def shared_run_dir(world: World) -> Path:
    """Hydra's folder for this run on rank 0, the same on every rank; collective."""
    return Path(gather(world, str(run_dir().absolute()))[0])


def find_origins(config: DictConfig, folder: Path) -> list[Checkpoint]:
    """Checkpoints that the run may go on from, newest first; none if it begins.

    Args:
        config: of the run.
        folder: of the run.

    Raises:
        ValueError: if it asks for one that is not there.
    """
    restarted = num_restarts() > 0
    found = _newest(folder) if restarted or config.resume == "auto" else []
    if not found and config.resume not in {None, "auto"}:
        found = find(config.resume, folder)
    if restarted:
        start = f"round {found[0].round_idx}" if found else "the beginning"
        log.warning("a rank died: all of them go on from %s", start)
    elif not found and config.resume is not None:
        log.info("resume=auto: no checkpoint in %s, a new run begins", folder)
    return found


def _newest(folder: Path) -> list[Checkpoint]:
    found = find("auto", folder)
    readable = {checkpoint.path for checkpoint in found}
    for path in finished(folder):
        if path not in readable:
            log.warning("a broken checkpoint is passed over: %s", path)
    return found


def with_known_sizes(
    phases: list[Phase], origin: Checkpoint | None, changes: list[str]
) -> list[Phase]:
    """The phases with what `auto` stood for in the run that is resumed.

    `micro_batch` is found again where another device may have other room.

    Args:
        phases: of the run.
        origin: where it goes on, if it does.
        changes: as of `changed_hardware`.
    """
    if origin is None:
        return phases
    sizes = dict(origin.about["sizes"])
    if changes:
        sizes.pop("micro_batch", None)
    return [Phase(phase.start, _filled(phase.config, sizes)) for phase in phases]


def _filled(config: DictConfig, sizes: dict[str, int]) -> DictConfig:
    config = deepcopy(config)
    for key, size in sizes.items():
        if config[key] == "auto":
            config[key] = size
    return config


def decided_before(origin: Checkpoint | None, changes: list[str], world: World) -> dict[str, Any]:
    """What this rank's engine found for `auto` in the run that is resumed.

    Nothing where that was on other hardware, which is said: rounding may be another, then.

    Args:
        origin: where the run goes on, if it does.
        changes: as of `changed_hardware`.
        world: the ranks of the run.
    """
    ranks: list[dict[str, Any]] = [] if origin is None else origin.about.get("decided", [])
    if not any(ranks):
        return {}
    if len(ranks) != world.size:
        changes = [*changes, "number of ranks"]
    if changes:
        log.info("another %s: what engine=auto decides is decided anew", ", ".join(changes))
        return {}
    return ranks[world.rank]


def changed_hardware(phases: list[Phase], origin: Checkpoint | None, world: World) -> list[str]:
    """What `auto` depends on and is another than it was: keys, or the machine; collective."""
    machine = gather(world, hardware())[0]
    if origin is None:
        return []
    before, now = origin.about["config"], _plain(phases[0].config)
    changes = [key for key in _HARDWARE if before.get(key) != now[key]]
    changes += ["machine"] * (origin.about.get("machine") != machine)
    same = before["schedule"]["phases"] == now["schedule"]["phases"]
    return changes if same else [*changes, "schedule.phases"]


def _plain(config: DictConfig) -> dict[str, Any]:
    plain: Any = OmegaConf.to_container(config, resolve=True)
    return plain


def loggers_of(config: DictConfig, origin: Checkpoint | None) -> Any:
    """The node of the loggers, which go on with the run that is resumed."""
    nodes: Any = OmegaConf.to_container(config.logger, resolve=True) if config.logger else {}
    if origin is None:
        return nodes
    for node in filter(None, nodes.values()):
        name = node["_target_"].rpartition(".")[2]
        known = origin.about["loggers"].get(name)
        if name in _LOGGER_IDS and known and node.get(_LOGGER_IDS[name]) is None:
            node[_LOGGER_IDS[name]] = known
            node |= {"resume": "allow"} if name == "WandbLogger" else {}
        if name == "TensorBoardLogger":  # hides what was written of rounds that are done anew
            node["purge_step"] = origin.round_idx + 1
    return nodes


def sizes_of(before: list[Phase], after: list[Phase]) -> dict[str, int]:
    """What every `auto` of a size stands for, by key."""
    return {
        key: int(new.config[key])
        for old, new in zip(before, after, strict=True)
        for key in ("batch_size", "micro_batch")
        if old.config[key] == "auto"
    }


def keep_checkpoints(
    federation: Federation,
    config: DictConfig,
    sizes: dict[str, int],
    folder: Path,
    requests: StopRequests,
) -> Checkpoints:
    """Have a federation leave checkpoints, and end when it is told to.

    Args:
        federation: of this rank.
        config: as it was given, `auto` included.
        sizes: what `auto` stands for.
        folder: of the run, the same on every rank.
        requests: whether somebody asks for an end.
    """
    plain, engine = _plain(config), federation.engine
    about = {
        "format": FORMAT,
        "science": digest(plain),
        "config": plain,
        "sizes": sizes,
        "data": fingerprint(federation.data),
        "machine": hardware(),
        "versions": {name: version(name) for name in ("flfast", "torch", "lightning")},
    }
    policy = Policy(**plain["checkpoint"])
    keeper = Checkpoints(policy, folder, engine.site.states, engine.site.world, about, requests)
    federation.callbacks = [*federation.callbacks, keeper]
    return keeper


def resume(federation: Federation, origins: list[Checkpoint]) -> None:
    """Bring a federation to where the newest checkpoint that can be loaded left it; collective.

    Raises:
        ValueError: if none can be.
    """
    engine = federation.engine
    origin = restore(federation, engine.site.states, origins, engine.site.world)
    for round_idx in range(origin.round_idx, 0, -1):
        before = federation.history[round_idx]["plan/precision"]
        now = federation.plans(round_idx, federation.history[:round_idx]).precision
        if now != before:
            log.warning(
                "trainer.precision=%s, up to round %d it was %s: other numbers than in one go",
                *(now, round_idx, before),
            )
            break
    log.info("goes on after round %d, from %s", origin.round_idx, origin.path)
