"""Builds the secure aggregation of a run, and refuses what a sum cannot carry."""

from dataclasses import replace

from hydra.utils import instantiate
from omegaconf import DictConfig

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.channel.secure.secure import Secure
from flfast.config.errors import ConfigError
from flfast.datamodules.federated import FederatedDataModule


def build_secure(config: DictConfig, data: FederatedDataModule) -> Secure:
    """The secure aggregation of a run; by default, weights are numbers of examples."""
    secure: Secure = instantiate(config.secure)
    if secure.make_round is None or secure.max_weight is not None:
        return secure
    return replace(secure, max_weight=float(data.client_sizes.max()))


def check_sums(secure: Secure, algorithm: Algorithm) -> None:
    """Refuse an algorithm whose uploads cannot be added up before the server sees them.

    Raises:
        ConfigError: naming algorithm, part and what is allowed.
    """
    if secure.make_round is None:
        return
    for local in (algorithm, *algorithm.calls):
        where = f"secure={secure.name} with algorithm={algorithm.name}"
        for name, part in local.parts.items():
            if part.rule == "rows":
                raise ConfigError(
                    f"{where}: the server needs {name} of each client, and gets nothing but sums; "
                    f"allowed: an algorithm without rows, such as fedavg, or secure=none"
                )
        if local.weight is not None and secure.max_weight is None:
            raise ConfigError(
                f"secure.max_weight=null with algorithm={algorithm.name}: its weights are not "
                f"numbers of examples; allowed: a bound of them, > 0, or secure=none"
            )
