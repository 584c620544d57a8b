"""Values of a config, and how messages show them."""

import pytest

from flfast.config.values import choice, value_of


@pytest.mark.parametrize("config", [{}, {"stop": None}, {"stop": {}}, {"stop": "never"}])
def test_what_a_config_lacks_has_no_value(config):
    assert value_of(config, "stop.metric") is None


def test_a_class_is_named_as_its_option_and_an_object_as_its_class():
    assert choice({"_target_": "flfast.channel.privacy.dp_sgd.DpSgd"}) == "dp_sgd"
    assert choice({"_target_": "torch.optim.AdamW"}) == "AdamW"
    own = {"_target_": "flfast.algorithms.contract.algorithm.Algorithm", "_own_": "0a1b"}
    assert choice(own) == "Algorithm"
