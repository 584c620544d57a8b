"""Builds the privacy of a run, and protects its algorithm."""

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Literal

from hydra.utils import get_object, instantiate
from omegaconf import DictConfig

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.downloads import shared_weights
from flfast.channel.privacy.noise_sources import draw_secure_seed, secure_noise, seeded_noise
from flfast.channel.privacy.participation import Participation
from flfast.channel.privacy.privacy import NoiseSource, Privacy
from flfast.config.values import choice
from flfast.datamodules.federated import FederatedDataModule
from flfast.distributed.world import World, gather
from flfast.federation.devices.ideal import ideal
from flfast.federation.paces.sync import sync
from flfast.federation.samplers.cohort import cohort_size
from flfast.federation.samplers.cyclic import cyclic
from flfast.federation.samplers.poisson import poisson
from flfast.federation.samplers.uniform import uniform
from flfast.state.injection import call_with
from flfast.state.tree import Tree
from flfast.state.vector import vector_sizes

log = logging.getLogger(__name__)

_DRAWING = ("sampler", "devices", "pace")
_KINDS: dict[object, Literal["fixed", "cyclic", "poisson"]] = {
    uniform: "fixed",
    cyclic: "cyclic",
    poisson: "poisson",
}
"""Samplers that an accountant knows. An own one is unknown, whatever its name is."""


def build_privacy(config: DictConfig, data: FederatedDataModule) -> Privacy:
    """The privacy of a run, calibrated to its rounds and its sampler; logs its warning.

    Raises:
        ValueError: if there is no accountant for the sampler.
    """
    privacy = instantiate(config.privacy)
    if not isinstance(privacy, Privacy):
        privacy = call_with(
            privacy,
            participation=_participation(config, len(data.candidates)),
            rounds=config.rounds,
            batch_size=config.batch_size,
            local_epochs=config.local_epochs,
            local_steps=config.local_steps,
        )
    if privacy.warning:
        log.warning("%s", privacy.warning)
    return privacy


def _participation(config: DictConfig, population: int) -> Participation:
    """Who takes part in rounds, by what draws the clients and not by what it is called."""
    sampler = config.sampler
    draws, devices, pace = (get_object(config[group]._target_) for group in _DRAWING)
    kind, reason = _KINDS.get(draws), ""
    if pace is not sync:  # whose turn it is depends on who is done
        reason = f"pace={choice(config.pace)}"
    elif kind is None:
        reason = f"sampler={choice(sampler)}"
    elif kind == "fixed" and devices is not ideal:
        # Of few available clients, each is drawn with a higher probability.
        reason = f"devices={choice(config.devices)}"
    if reason or kind is None:
        return Participation("other", population, 0, 0, reason)
    if kind == "poisson":
        cohort: float = sampler.fraction * population
    else:
        cohort = cohort_size(population, fraction=sampler.fraction, count=sampler.count)
    return Participation(kind, population, cohort, cohort * (1 - sampler.dropout))


def protect(privacy: Privacy, algorithm: Algorithm, initial: Tree, *, rounds: int) -> Algorithm:
    """The algorithm, as the privacy of the run wraps it; logs what the privacy costs."""
    if privacy.unit is None:
        return algorithm
    if privacy.epsilon is not None:
        log.info(
            "privacy=%s: epsilon=%.3g at delta=%g for each %s after %d rounds",
            *(privacy.name, privacy.epsilon(rounds), privacy.delta, privacy.unit, rounds),
        )
    if privacy.wrap is not None:
        return privacy.wrap(algorithm)
    if num_elements := vector_sizes(shared_weights(algorithm, initial), ()).learned:
        _log_noise(privacy, num_elements)
    if privacy.expected_clients is not None and not algorithm.weighs_equally:
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


def noise_source(privacy: Privacy, seed: int, world: World) -> Callable[[str], NoiseSource]:
    """Purpose -> source of noise, the same on all ranks; collective."""
    if not privacy.secure:
        return partial(seeded_noise, seed)
    # One rank draws, because all of them add the same noise to the sum.
    drawn = gather(world, draw_secure_seed() if world.rank == 0 else None)[0]
    return partial(secure_noise, drawn)
