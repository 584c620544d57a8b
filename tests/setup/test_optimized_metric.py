"""Which way a search goes."""

import pytest
from omegaconf import OmegaConf

from flfast.config.errors import ConfigError
from flfast.setup.optimized_metric import check_direction


def hydra(direction, mode="MULTIRUN"):
    return OmegaConf.create({"hydra": {"mode": mode, "sweeper": {"direction": direction}}})


@pytest.mark.parametrize(
    ("metric", "right", "wrong"),
    [("val/loss", "minimize", "maximize"), ("val/accuracy", "maximize", "minimize")],
)
def test_a_search_for_the_worst_job_is_refused(metric, right, wrong):
    config = OmegaConf.create({"optimized_metric": metric})
    check_direction(config, hydra(right))
    check_direction(config, hydra(wrong, mode="RUN"))
    check_direction(config, hydra(["minimize", "maximize"]))
    check_direction(config, OmegaConf.create({"hydra": {"mode": "MULTIRUN", "sweeper": {}}}))
    said = f"direction={wrong} with optimized_metric={metric}: allowed: .*direction={right}"
    with pytest.raises(ConfigError, match=said):
        check_direction(config, hydra(wrong))
