"""Every pair of privacy, compression, secure aggregation and aggregation works or is refused."""

from dataclasses import replace
from itertools import combinations, product

import pytest
import torch
from algorithms_by_name import NAMES, algorithm_of
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import nn

from flfast.algorithms.contract.algorithm_capabilities import capabilities_of
from flfast.algorithms.fedavg import fedavg
from flfast.channel.privacy.privacy import Privacy
from flfast.config.check import check
from flfast.config.errors import ConfigError
from flfast.engines.eager import EagerTraining
from flfast.engines.site import reference_name, reference_site
from flfast.setup.protection import build_privacy, protect
from flfast.setup.robustness import build_channel
from flfast.state.tree import all_finite
from flfast.state.weights import read_weights
from flfast.train import CONF

GROUPS = ("privacy", "compression", "secure", "aggregation")
PLAIN = {"privacy": "none", "compression": "none", "secure": "none", "aggregation": "mean"}
# Of the digits' ten clients; the default numbers of attackers are for larger cohorts.
SMALL = {"num_byzantine": 1}


@pytest.fixture(scope="module")
def options(root):
    """Nodes of the config by (group, option)."""
    found = {}
    for group in GROUPS:
        for path in sorted((root / "conf" / group).glob("*.yaml")):
            node = OmegaConf.load(path)
            small = {key: value for key, value in SMALL.items() if key in node}
            found[group, path.stem] = OmegaConf.merge(node, small)
    return found


@pytest.fixture(scope="module")
def config_of(options):
    with initialize_config_dir(CONF, version_base="1.3"):
        settings = ["local_epochs=1", "rounds=1", "split.server_examples=4"]
        base = compose("config", [*settings, "sampler=cyclic", "logger=none"])

    def config_of(chosen):
        config = base.copy()
        for group, name in chosen.items():
            config[group] = options[group, name]
        return config

    return config_of


def pairs(options):
    """Choices of two groups, plain in the others."""
    names = {group: [name for key, name in options if key == group] for group in GROUPS}
    for one, other in combinations(GROUPS, 2):
        for choice in product(names[one], names[other]):
            yield {**PLAIN, one: choice[0], other: choice[1]}


def is_alone(chosen):
    """Whether an option is with plain ones only."""
    return sum(PLAIN[group] != name for group, name in chosen.items()) <= 1


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 15])
def test_each_pair_works_or_is_refused_with_both_names(
    options, config_of, make_data, make_federation, every
):
    """Each option trains, and one in `every` pairs is tried."""
    worked, refused, trained = [], [], set()
    data = make_data([3] * 8, server_examples=4)
    tried = [c for n, c in enumerate(pairs(options)) if n % every == 0 or is_alone(c)]
    for chosen in tried:
        if chosen in worked:
            continue
        config = config_of(chosen)
        try:
            check(config)
        except ConfigError as error:
            named = [name for group, name in chosen.items() if f"{group}={name}" in str(error)]
            assert len(named) == 2, error
            refused.append(chosen)
            continue
        worked.append(chosen)
        if every == 1 or not trained.issuperset(chosen.items()):
            trained.update(chosen.items())
            run_once(chosen, config, data, make_federation)
    assert trained == set(options)
    assert len(worked) * every > 100
    assert len(refused) * every > 30
    masked = [chosen for chosen in worked if chosen["secure"] == "masks"]
    assert len({chosen["privacy"] for chosen in masked}) == 5 or every > 1
    assert {chosen["aggregation"] for chosen in masked} == {"mean"}


def run_once(chosen, config, data, make_federation):
    model = nn.Linear(5, 3)
    privacy = build_privacy(config, data)
    algorithm = protect(privacy, fedavg(weighting="samples"), read_weights(model), rounds=1)
    federation = make_federation(data, model, algorithm=algorithm)
    channel, engine = build_channel(config, data, privacy), federation.engine
    engine.site = replace(engine.site, keeps_residuals=channel.compression.feedback)
    engine.channel = channel
    if channel.aggregation.trusted:
        own = reference_site(engine.site, algorithm)
        engine._calls = {reference_name(algorithm.name): (own, EagerTraining(own))}
    before = federation.weights()["weight"].clone()
    federation.run()
    assert all_finite(federation.server)
    # A robust rule takes the one element of eighteen that each client sends for an outlier.
    if chosen["compression"] not in {"randk", "topk"} or chosen["aggregation"] == "mean":
        assert not torch.equal(federation.weights()["weight"], before), chosen
    assert federation.history[1]["cohort/clients"] == 8


@pytest.mark.parametrize("name", NAMES)
def test_uploads_of_every_algorithm_are_protected_or_refused(name):
    """Noise protects parts that are learned, and the server's noise is for a mean of equals.

    A weight of the client's own, such as FedAS's Fisher information, has no noise.
    """
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    algorithm = algorithm_of(name, model)
    found = capabilities_of(algorithm, read_weights(model))
    local, central = (Privacy(name, unit="client", expected_clients=n) for n in (None, 4))
    parts = algorithm.parts.values()
    bare = [part for part in parts if not part.learned or part.over is not None]
    rows = [part for part in parts if part.rule == "rows"]
    own = algorithm.send or algorithm.has_own_weights
    is_refused = bool(bare or algorithm.has_own_weights or algorithm.round)
    assert any(broken in local.capabilities.needs for broken in found.breaks) == is_refused
    is_refused |= bool(rows or own or algorithm.kit.place)
    assert any(broken in central.capabilities.needs for broken in found.breaks) == is_refused
