"""Builds the privacy of a run, and refuses what it could not protect."""

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.downloads import first_downloads
from flfast.algorithms.kit.wrapping import check_one_call
from flfast.channel.channel import Channel
from flfast.channel.privacy.noise_sources import draw_secure_seed, secure_noise, seeded_noise
from flfast.channel.privacy.participation import Participation
from flfast.channel.privacy.privacy import NoiseSource, Privacy
from flfast.config.channel_rules import unmet
from flfast.config.errors import ConfigError
from flfast.config.rule import choice
from flfast.datamodules.federated import FederatedDataModule
from flfast.distributed.world import World, gather
from flfast.federation.paces.pace import Pace
from flfast.federation.samplers.cohort import cohort_size
from flfast.state.injection import call_with
from flfast.state.tree import Tree, leaves
from flfast.state.vector import vector_sizes

log = logging.getLogger(__name__)


def build_privacy(config: DictConfig, data: FederatedDataModule) -> Privacy:
    """The privacy of a run, calibrated to its rounds and its sampler.

    Raises:
        ConfigError: if there is no accountant for the sampler, or if other settings break what it
            needs.
    """
    privacy = _made(config, data)
    if privacy.warning:
        log.warning("%s", privacy.warning)
    settings: Any = config
    problem = unmet(privacy.needs, settings)
    if problem is not None:
        raise ConfigError(problem)
    return privacy


def _made(config: DictConfig, data: FederatedDataModule) -> Privacy:
    make = instantiate(config.privacy)
    if isinstance(make, Privacy):
        return make
    offers = {
        "participation": _participation(config, len(data.candidates)),
        "rounds": config.rounds,
        "batch_size": config.batch_size,
        "local_epochs": config.local_epochs,
        "local_steps": config.local_steps,
    }
    privacy: Privacy = call_with(make, **offers)
    return privacy


def check_noised_sums(channel: Channel, pace: Pace) -> None:
    """Refuse what noise on sums does not hide, by what objects do and not by their names.

    Args:
        channel: of the run.
        pace: of the run.

    Raises:
        ConfigError: if the server may get more than the sum of a whole cohort's changes.
    """
    if "sums" not in channel.privacy.needs:
        return
    found, allowed = f"aggregation={channel.aggregation.name}", "aggregation=mean"
    if channel.aggregation.combine is None:
        if pace.most_uploads is None:
            return
        key, number = pace.most_uploads
        found, allowed = f"{key}={number}", "pace=sync pace.keep_first=null"
    raise ConfigError(
        f"{found} with privacy={channel.privacy.name}: its noise is for the sum of a whole "
        f"cohort; allowed: {allowed}"
    )


def _participation(config: DictConfig, population: int) -> Participation:
    sampler, kind = config.sampler, choice(config.sampler)
    if choice(config.pace) != "sync":  # whose turn it is depends on who is done
        return Participation("other", population, 0, 0, f"pace={choice(config.pace)}")
    if kind == "uniform" and choice(config.devices) != "ideal":
        # Of few available clients, each is drawn with a higher probability.
        return Participation("other", population, 0, 0, f"devices={choice(config.devices)}")
    if kind in {"uniform", "cyclic"}:
        options = {"fraction": sampler.fraction, "count": sampler.count}
        cohort: float = cohort_size(population, **options)
    elif kind == "poisson":
        cohort = sampler.fraction * population
    else:
        return Participation("other", population, 0, 0, f"sampler={kind}")
    name = {"uniform": "fixed", "cyclic": "cyclic", "poisson": "poisson"}[kind]
    return Participation(name, population, cohort, cohort * (1 - sampler.dropout))  # type: ignore[arg-type]


def protect(privacy: Privacy, algorithm: Algorithm, initial: Tree, *, rounds: int) -> Algorithm:
    """The algorithm, as the privacy of the run wraps it; logs what the privacy costs.

    Args:
        privacy: the run's privacy mechanism.
        algorithm: the run's algorithm.
        initial: weights before round 1.
        rounds: number of rounds of the run.

    Raises:
        ConfigError: if uploads hold what would not be protected.
        ValueError: likewise, of single examples.
    """
    if privacy.unit is None:
        return algorithm
    if privacy.epsilon is not None:
        log.info(
            "privacy=%s: epsilon=%.3g at delta=%g for each %s after %d rounds",
            *(privacy.name, privacy.epsilon(rounds), privacy.delta, privacy.unit, rounds),
        )
    if privacy.wrap is not None:
        return privacy.wrap(algorithm)
    origin = algorithm.origin(first_downloads(algorithm, initial)(0))
    _check_uploads(privacy, algorithm, origin)
    _log_noise(privacy, vector_sizes(origin, ()).learned)
    if privacy.expected_clients is not None and algorithm.weighting == "samples":
        log.info("privacy=%s: all clients weigh the same", privacy.name)
    return algorithm


def _log_noise(privacy: Privacy, num_elements: int) -> None:
    """Say how long the noise of D elements is, sqrt(D) deviations, beside the longest change."""
    root = math.sqrt(num_elements)
    if privacy.expected_clients is not None:
        ratio, where = privacy.central_multiplier * root / privacy.expected_clients, "the mean"
    else:
        ratio, where = privacy.local_multiplier * root, "each upload"
    log.info(
        "privacy=%s: noise of %s is %.3g times as long as a clipped change; more clients, fewer "
        "parameters or a larger epsilon make it shorter",
        *(privacy.name, where, ratio),
    )


def _check_uploads(privacy: Privacy, algorithm: Algorithm, origin: Tree) -> None:
    """Refuse uploads with anything that is neither clipped nor hidden by noise."""
    where = f"privacy={privacy.name} with algorithm={algorithm.name}"
    check_one_call(algorithm, f"privacy={privacy.name}")
    central = privacy.expected_clients is not None
    if central and (algorithm.send is not None or algorithm.weight is not None):
        raise ConfigError(
            f"{where}: clients get or count something of their own, and the noise is for a mean "
            f"of equals; use privacy=local or another algorithm"
        )
    for name, part in algorithm.parts.items():
        if not part.learned or part.over is not None or (central and part.rule == "rows"):
            raise ConfigError(
                f"{where}: its uploads have {name}, which noise would not protect; use another "
                f"algorithm"
            )
    if any(not leaf.is_floating_point() for leaf in leaves(origin)):
        raise ConfigError(
            f"{where}: its uploads have counts of BatchNorm, which noise would not protect; "
            f"use model.norm=group, bn=local or a model without BatchNorm"
        )


def noise_source(privacy: Privacy, seed: int, world: World) -> Callable[[str], NoiseSource]:
    """Purpose -> source of noise, the same on all ranks; collective."""
    if not privacy.secure:
        return partial(seeded_noise, seed)
    # One rank draws, because all of them add the same noise to the sum.
    drawn = gather(world, draw_secure_seed() if world.rank == 0 else None)[0]
    return partial(secure_noise, drawn)
