"""What the objects of a run need and break, whatever their options are called."""

from hydra.utils import instantiate
from omegaconf import DictConfig

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.algorithm_capabilities import capabilities_of
from flfast.channel.privacy.privacy import Privacy
from flfast.datamodules.federated import FederatedDataModule
from flfast.state.capabilities import Capabilities, needing
from flfast.state.tree import Tree

_CHANNEL = ("aggregation", "attack", "audit", "compression", "faults", "secure")


def object_capabilities(
    config: DictConfig,
    data: FederatedDataModule,
    algorithm: Algorithm,
    selected: Algorithm,
    privacy: Privacy,
    initial: Tree,
) -> dict[str, Capabilities]:
    """Capabilities of the objects that a run is composed of, by group of the config.

    Args:
        config: the run's config.
        data: examples of all clients.
        algorithm: the run's algorithm, before the selection wraps it.
        selected: the same afterwards.
        privacy: the run's privacy mechanism.
        initial: weights before round 1.
    """
    bare, wrapped = (capabilities_of(one, initial) for one in (algorithm, selected))
    selecting = Capabilities(
        wrapped.needs - bare.needs,
        {name: why for name, why in wrapped.breaks.items() if name not in bare.breaks},
    )
    return {
        f"task={data.examples.task}": needing(data.examples.task),
        "algorithm": bare,
        "selection": selecting,
        "privacy": privacy.capabilities,
        **{group: instantiate(config[group]).capabilities for group in _CHANNEL},
    }
