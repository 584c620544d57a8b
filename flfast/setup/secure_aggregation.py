"""Builds the secure aggregation of a run, and refuses numbers that are too coarse."""

from collections.abc import Iterable
from dataclasses import replace

from hydra.utils import instantiate
from omegaconf import DictConfig

from flfast.channel.secure.secure import Secure
from flfast.datamodules.federated import FederatedDataModule
from flfast.federation.samplers.cohort import Cohort


def build_secure(config: DictConfig, data: FederatedDataModule) -> Secure:
    """The secure aggregation of a run; by default, weights are numbers of examples."""
    secure: Secure = instantiate(config.secure)
    if secure.make_round is None or secure.max_weight is not None:
        return secure
    return replace(secure, max_weight=float(data.client_sizes.max()))


def check_precision(secure: Secure, cohorts: Iterable[Cohort]) -> None:
    """Refuse settings whose numbers are too coarse for the largest of these cohorts.

    Args:
        secure: of the run.
        cohorts: of the first rounds.

    Raises:
        ValueError: naming bits, range, precision and the size of the cohort.
    """
    if secure.check is not None:
        secure.check(max(len(cohort.clients) for cohort in cohorts))
