"""What a config says and what is built from it."""

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import nn

from flfast.config.errors import ConfigError
from flfast.config.own import NOTHING, Own
from flfast.datamodules.examples import Examples
from flfast.setup.build_algorithm import build_algorithm
from flfast.setup.build_data import load_for_node
from flfast.setup.plans import build_plan
from flfast.state.weights import read_weights


@pytest.mark.parametrize(("policy", "dropped"), [("aggregate", True), ("frozen", False)])
def test_an_example_is_left_out_only_where_batchnorm_needs_its_batch(root, policy, dropped):
    with initialize_config_dir(str(root / "conf"), version_base="1.3"):
        config = compose("config", [f"bn={policy}"])
    model = nn.Sequential(nn.BatchNorm1d(2))
    assert build_plan(0, config, model).batching.drop_single is dropped


@pytest.mark.parametrize(
    ("name", "shared"),
    [("fedavg", True), ("fedrep", True), ("lg_fedavg", False), ("ifca", False), ("local", False)],
)
def test_statistics_that_are_not_shared_cannot_be_recalibrated(root, name, shared):
    with initialize_config_dir(str(root / "conf"), version_base="1.3"):
        config = compose("config", ["bn=recalibrate", f"algorithm={name}"])
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    if shared:
        build_algorithm(config, read_weights(model), model, num_clients=10)
        return
    with pytest.raises(ConfigError, match=f"bn=recalibrate with algorithm={name}: clients do not"):
        build_algorithm(config, read_weights(model), model, num_clients=10)


def own_source(**_options):
    return Examples(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), 2)


def test_functions_of_users_load_on_every_rank_unless_they_download(root):
    with initialize_config_dir(str(root / "conf"), version_base="1.3"):
        config = compose("config", ["data=synthetic", "data.num_examples=200"])
        copied = compose("config", ["data=synthetic"])
    assert isinstance(load_for_node(config, NOTHING), Examples)
    assert load_for_node(config, Own(data=own_source)) is None
    target = f"{__name__}.own_source"
    copied.data = {"_target_": "flfast.zoo.datamodules.sources.copies.copies", "source": {}}
    copied.data.source = {"_target_": target}
    assert load_for_node(copied, NOTHING) is None
    config.data = {"_target_": target, "_partial_": True}
    assert load_for_node(config, NOTHING) is None
    config.data = {"_target_": target, "_partial_": True, "download": True}
    assert len(load_for_node(config, NOTHING).targets) == 4
