"""What a run learns by: algorithm, models, optimizer and privacy. None depends on the plan."""

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, open_dict
from torch import Tensor

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.downloads import first_downloads, shared_weights
from flfast.channel.privacy.privacy import NO_PRIVACY, Privacy
from flfast.config.combinations import check_composed
from flfast.config.errors import ConfigError
from flfast.config.own import NOTHING, Own
from flfast.datamodules.federated import FederatedDataModule
from flfast.datamodules.population import Kinds
from flfast.datamodules.preprocessing import Preprocessing
from flfast.federation.topologies.topology import Topology, on_nodes
from flfast.lit.local_module import LocalModule
from flfast.lit.module_optimizer import ModuleOptimizer
from flfast.lit.module_task import Habits
from flfast.lit.own_step_module import OwnStepModule
from flfast.lit.user_module import UserModule
from flfast.models.adapters.adapted import Adapted
from flfast.models.adapters.rounded_base import has_rounded
from flfast.models.recomputed import recompute
from flfast.setup.build_algorithm import build_algorithm, build_optimizer, build_selection
from flfast.setup.build_data import build_data
from flfast.setup.build_models import InitialModel, Models, initial_models
from flfast.setup.external_world import prepare_process
from flfast.setup.lightning_model import check_steps
from flfast.setup.module_trial import try_module
from flfast.setup.protection import build_privacy, protect
from flfast.setup.robustness import object_capabilities, poison_examples
from flfast.state.capabilities import Capabilities
from flfast.state.injection import asks_for, call_with
from flfast.state.tree import Tree, named_leaves


class Members(NamedTuple):
    """Which clients have which model of a family.

    Attributes:
        kinds: names of the members, and place of each client's.
        others: components of all members but the first, with the same data.
    """

    kinds: Kinds
    others: tuple["Learner", ...]


class Learner(NamedTuple):
    """Everything of a run that does not depend on the plan; with a family, of its first member.

    Attributes:
        data: the population.
        module: model, algorithm and optimizer.
        initial: weights before round 1; with an adapter, the adapter's.
        adapted: the model with its adapter, if it has one.
        privacy: the run's privacy mechanism.
        capabilities: what the run's objects need and break, by group of the config.
        topology: nodes that the algorithm runs on; None is one server.
        members: of a family of several models; None: all clients have the same one.
    """

    data: FederatedDataModule
    module: LocalModule
    initial: Tree
    adapted: Adapted | None = None
    privacy: Privacy = NO_PRIVACY
    capabilities: Mapping[str, Capabilities] = MappingProxyType({})
    topology: Topology | None = None
    members: Members | None = None

    def of_client(self, client_id: int) -> "Learner":
        """Learner of the client's own model."""
        if self.members is None or not (place := self.members.kinds.of[client_id]):
            return self
        return self.members.others[place - 1]


def learner_of(
    config: DictConfig, objects: Own = NOTHING, kept: Preprocessing | None = None
) -> Learner:
    """Data, models and algorithm of a run; none depends on the plan. `kept` is of a saved run."""
    prepare_process(config)
    data = build_data(config, objects, kept)
    return build_learner(config, data, initial_models(config, data, objects), objects)


def build_learner(
    config: DictConfig, data: FederatedDataModule, models: Models, objects: Own = NOTHING
) -> Learner:
    """The algorithm with its models, optimizer and privacy.

    Raises:
        ConfigError: if they do not fit together.
    """
    privacy = build_privacy(config, data)
    weights = [one.weights for one in models.by_name.values()]
    offers: dict[str, Any] = {"common": models.common, "members": weights}
    public = data.train_clients.indices_of(data.server) if data.server is not None else ()
    offers |= {"num_public": len(public), "num_classes": data.num_classes}
    of_model = partial(_of_model, config, data, privacy=privacy, objects=objects, offers=offers)
    first, *others = map(of_model, models.by_name.values())
    poison_examples(config, data)
    if models.kinds is None:
        return first
    data.kinds = models.kinds
    made = instantiate(config.algorithm) if objects.algorithm is None else objects.algorithm
    lacks_common = models.common is None and callable(made) and asks_for(made, "common")
    by_name = dict(zip(models.by_name, (first, *others), strict=True))
    check_agree(config, by_name, lacks_common=lacks_common)
    return first._replace(members=Members(models.kinds, tuple(others)))


def _of_model(
    config: DictConfig,
    data: FederatedDataModule,
    start: InitialModel,
    *,
    privacy: Privacy,
    objects: Own,
    offers: dict[str, Any],
) -> Learner:
    """The learner with this model; `offers` is what algorithms may ask for beside it."""
    model, initial, adapted, misfit = start
    if config.recompute is not None:
        recompute(model, config.recompute)
    trial, kind, task_type = None, LocalModule, data.examples.task_type
    if isinstance(model, UserModule):
        trial = try_module(config.model["_target_"], model, data, config)
        kind, task_type = OwnStepModule, trial.on(task_type)
        config = _with_momentum(config, trial.optimizer)
    num_clients = data.num_clients
    algorithm = build_algorithm(config, initial, model, objects, num_clients=num_clients, **offers)
    if misfit is not None and not algorithm.slices:
        raise misfit
    if algorithm.kit.fold is not None and has_rounded(model):
        raise ConfigError(
            f"algorithm={algorithm.name} with adapter.base_bits=8: it adds small changes to the "
            "base, which 8 bits would lose; allowed: adapter.base_bits=null, or another algorithm"
        )
    algorithm, topology = _on_topology(config, algorithm, data)
    selected = build_selection(config, algorithm, data)
    capabilities = object_capabilities(config, data, algorithm, selected, privacy, initial)
    check_composed(config, capabilities)
    algorithm = protect(privacy, selected, initial, rounds=config.rounds)
    if trial is not None:
        by_hand, several = not model.automatic_optimization, trial.optimizer.several
        check_steps(algorithm, initial, config, by_hand=by_hand, several=several)
    make_optimizer = build_optimizer(config, model, algorithm, trial and trial.optimizer)
    habits = trial and Habits(trial.unrepeatable, trial.logged_in_steps, trial.monitors)
    options: Any = {"freeze_batchnorm": config.bn == "frozen", "habits": habits}
    module = kind(model, algorithm, make_optimizer, task_type, **options)
    if privacy.check_model is not None:  # after bn=frozen has frozen BatchNorm
        privacy.check_model(model)
    return Learner(data, module, initial, adapted, privacy, capabilities, topology)


def _with_momentum(config: DictConfig, optimizer: ModuleOptimizer) -> DictConfig:
    """The config with the momentum of a module's own SGD, which algorithms may read."""
    found = deepcopy(config)
    if config.optimizer["_target_"].endswith(ModuleOptimizer.__name__):
        with open_dict(found.optimizer):
            found.optimizer.update(optimizer.sgd)
    return found


def _on_topology(
    config: DictConfig, algorithm: Algorithm, data: FederatedDataModule
) -> tuple[Algorithm, Topology | None]:
    """The algorithm on the nodes of the topology, and the topology if there are nodes.

    Raises:
        ValueError: if the topology does not fit the clients or the algorithm.
    """

    def class_counts() -> np.ndarray:
        targets, train, num = np.asarray(data.examples.targets), data.splits["train"], 0
        if data.examples.task == "classification":
            num = data.num_classes
        own = (train.indices_of(client_id) for client_id in range(data.num_clients))
        return np.array([np.bincount(targets[k], minlength=num) if num else [len(k)] for k in own])

    offers = {
        "class_counts": class_counts,
        "participants": data.participants,
        "num_clients": data.num_clients,
        "seed": config.seed,
    }
    topology = call_with(instantiate(config.topology), **offers)
    if topology is None:
        return algorithm, None
    if data.pooled:
        raise ValueError("topology: mode=centralized has one client; allowed: topology=star")
    return on_nodes(algorithm, topology), topology


def check_agree(config: DictConfig, members: Mapping[str, Learner], *, lacks_common: bool) -> None:
    """Refuse a family whose members share weights of different names or shapes.

    `lacks_common` is of an algorithm that asks for `model.common`, without one.

    Raises:
        ConfigError: naming the weights, or a setting that is for one model.
    """
    for key in ("batch_size", "micro_batch"):
        if config[key] == "auto":
            raise ConfigError(f"{key}=auto: is found for one model; allowed: a number")
    if config.mode == "centralized":
        raise ConfigError("mode=centralized: trains one model; allowed with model=family: others")
    bases = [one.adapted.base.leaves if one.adapted else {} for one in members.values()]
    if next(iter(members.values())).module.algorithm.slices and not all(
        _equal(bases[0], base) for base in bases[1:]
    ):
        raise ConfigError(
            "model.of: members have slices of one adapter, but other frozen weights; allowed: "
            "members of one option, and for LoRA adapter.freeze_a=false"
        )
    (first, expected), *others = ((name, _shared(one)) for name, one in members.items())
    for name, found in others:
        differing = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
        if differing:
            algorithm = members[name].module.algorithm.name
            if lacks_common:
                raise ConfigError(
                    f"model.common=null with algorithm={algorithm}, in which members of a family "
                    f"share a model beside their own; allowed: an option, as model.common=mlp"
                )
            raise ConfigError(
                f"model.of: with algorithm={algorithm} clients share {', '.join(differing[:3])}"
                f"{', ...' * (len(differing) > 3)}, which {first} and {name} do not have alike; "
                f"allowed: algorithms that share none of it, such as local, fedproto, fd, fedgh, "
                f"lg_fedavg, and model.feature_dim=64 for features and heads of one size"
            )


def _equal(leaves: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return leaves.keys() == other.keys() and all(torch.equal(leaves[n], other[n]) for n in leaves)


def _shared(learner: Learner) -> dict[str, torch.Size]:
    """Names and shapes of what clients get from the server, and change."""
    algorithm, initial = learner.module.algorithm, learner.initial
    if algorithm.kit.place is not None:  # which the algorithm has checked
        return {}
    trees = first_downloads(algorithm, initial)(0), shared_weights(algorithm, initial)
    return {name: leaf.shape for tree in trees for name, leaf in named_leaves(tree, separator="/")}
