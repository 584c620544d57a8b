"""What a config says and what is built from it."""

import pytest
from hydra import compose, initialize_config_dir
from torch import nn

from flfast.setup.build import build_plan


@pytest.mark.parametrize(("policy", "dropped"), [("aggregate", True), ("frozen", False)])
def test_an_example_is_left_out_only_where_batchnorm_needs_its_batch(root, policy, dropped):
    with initialize_config_dir(str(root / "conf"), version_base="1.3"):
        config = compose("config", [f"bn={policy}"])
    model = nn.Sequential(nn.BatchNorm1d(2))
    assert build_plan(0, config, model).batching.drop_single is dropped
