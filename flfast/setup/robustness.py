"""Builds attacks, faults, secure aggregation and the server's defences from config nodes.

Also asks the objects of a run what they need and break, whatever their options are called.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace

from hydra.utils import instantiate
from omegaconf import DictConfig

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.algorithm_capabilities import capabilities_of
from flfast.channel.aggregations.aggregation import Aggregation
from flfast.channel.attacks.attack import Attack, choose_attackers
from flfast.channel.channel import Channel
from flfast.channel.privacy.privacy import NO_PRIVACY, Privacy
from flfast.channel.secure.secure import Secure
from flfast.config.errors import ConfigError
from flfast.config.values import choice
from flfast.datamodules.federated import FederatedDataModule
from flfast.distributed.world import ALONE, World
from flfast.federation.samplers.cohort import Cohort
from flfast.setup.protection import noise_source
from flfast.state.capabilities import Capabilities, breaking, needing
from flfast.state.tree import Tree

log = logging.getLogger(__name__)

_CHANNEL = ("aggregation", "attack", "audit", "compression", "faults", "secure")


def poison_examples(config: DictConfig, data: FederatedDataModule) -> None:
    """Change training examples of attackers, if `attack` poisons labels or plants a backdoor.

    Raises:
        ConfigError: if the examples cannot have the attack's trigger.
    """
    attack: Attack = instantiate(config.attack)
    attackers = sorted(_attackers(attack, config, data))
    if attack.labels is not None:
        data.relabel(attackers, attack.labels)
    if attack.backdoor is not None:
        try:
            data.poison(attackers, attack.backdoor)
        except ValueError as error:
            raise ConfigError(f"attack={choice(config.attack)}: {error}") from error


def build_channel(
    config: DictConfig,
    data: FederatedDataModule,
    privacy: Privacy = NO_PRIVACY,
    world: World = ALONE,
) -> Channel:
    """The channel that uploads pass through; logs which clients attack; collective."""
    attack: Attack = instantiate(config.attack)
    attackers = _attackers(attack, config, data)
    if attackers:
        log.info(
            "%s: %d of %d clients attack: %s",
            *(choice(config.attack), len(attackers), len(data.candidates), sorted(attackers)),
        )
    elif attack.upload or attack.labels or attack.collude or attack.backdoor:
        num = len(data.candidates)
        log.warning("attack.fraction=%g of %d clients is none", attack.fraction, num)
    return Channel(
        seed=config.seed,
        aggregation=instantiate(config.aggregation),
        clip_norm=config.upload_clip_norm,
        attack=attack,
        attackers=attackers,
        faults=instantiate(config.faults),
        privacy=privacy,
        compression=instantiate(config.compression),
        secure=_secure(config, data),
        noise=noise_source(privacy, config.seed, world),
    )


def _secure(config: DictConfig, data: FederatedDataModule) -> Secure:
    """The secure aggregation of a run; by default, weights are numbers of examples."""
    secure: Secure = instantiate(config.secure)
    if secure.make_round is None or secure.max_weight is not None:
        return secure
    return replace(secure, max_weight=float(data.client_sizes.max()))


def check_cohorts(
    aggregation: Aggregation,
    cohorts: Iterable[Cohort],
    *,
    num_selected: int | None = None,
    most_uploads: tuple[str, int] | None = None,
) -> None:
    """Refuse an aggregation that needs more uploads than ever clients train.

    Cohorts are drawn until one is large enough: some samplers draw cohorts of random size. A
    selection of `num_selected` clients that selects everybody is logged. `most_uploads` are an
    option and the number of a step's uploads that it sets.

    Raises:
        ValueError: if too few clients train in all of these rounds.
    """
    limits = {} if num_selected is None else {"selection.count": num_selected}
    if most_uploads is not None:
        limits[most_uploads[0]] = most_uploads[1]
    for key, number in limits.items():
        if number < aggregation.min_uploads:
            raise ValueError(
                f"{aggregation.reason} uploads for aggregation={aggregation.name}, and "
                f"{key}={number} of them count; allowed: a lower number, or a larger {key}"
            )
    largest = 0
    for cohort in cohorts:
        size = sum(len(part) for part in cohort)
        if num_selected is not None and not largest and num_selected >= size:
            log.warning("selection.count=%d: all %d clients of round 1 train", num_selected, size)
        largest = max(largest, size)
        if largest >= aggregation.min_uploads or aggregation.min_uploads == 1:
            return
    raise ValueError(
        f"{aggregation.reason} uploads for aggregation={aggregation.name}, and the largest "
        f"cohort has {largest} clients; allowed: a lower number, or a larger cohort or population"
    )


def warn_of_rows(aggregation: Aggregation, algorithm: Algorithm) -> None:
    """Warn if a robust rule does not act on all that is learned."""
    rows = [name for name, part in algorithm.parts.items() if part.rule == "rows" and part.learned]
    if aggregation.combine is not None and rows:
        log.warning(
            "aggregation=%s does not act on %s: algorithm=%s gets these parts one by one",
            *(aggregation.name, ", ".join(rows), algorithm.name),
        )


def _attackers(attack: Attack, config: DictConfig, data: FederatedDataModule) -> frozenset[int]:
    return choose_attackers(data.candidates, attack.fraction, seed=config.seed)


def object_capabilities(
    config: DictConfig,
    data: FederatedDataModule,
    algorithm: Algorithm,
    selected: Algorithm,
    privacy: Privacy,
    initial: Tree,
) -> dict[str, Capabilities]:
    """Capabilities of the objects that a run is composed of, by group of the config.

    `selected` is the algorithm as the selection wraps it.
    """
    bare, wrapped = (capabilities_of(one, initial) for one in (algorithm, selected))
    selecting = Capabilities(
        wrapped.needs - bare.needs,
        {name: why for name, why in wrapped.breaks.items() if name not in bare.breaks},
    )
    says = needing(data.examples.task)
    if not data.examples.task_type.separable:
        whole = ("one objective", "single losses")
        says |= breaking("its loss compares the examples of a batch", *whole)
    if data.examples.task == "module":
        says |= breaking("a step gives one loss of a batch", "one objective", "single losses")
    return {
        f"task={data.examples.task}": says,
        "algorithm": bare,
        "selection": selecting,
        "privacy": privacy.capabilities,
        **{group: instantiate(config[group]).capabilities for group in _CHANNEL},
    }
