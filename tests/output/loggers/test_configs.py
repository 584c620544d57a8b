from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf, open_dict

CONF = Path(__file__).parents[3] / "conf"
OPTIONS = sorted(path.stem for path in (CONF / "logger").glob("*.yaml") if path.stem != "none")


@pytest.fixture
def composed(tmp_path):
    def build(option):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose(overrides=[f"+logger={option}"], return_hydra_config=True)
        with open_dict(cfg):
            cfg.hydra.runtime.output_dir = str(tmp_path)
        HydraConfig.instance().set_config(cfg)
        return cfg.logger

    yield build
    HydraConfig.instance().cfg = None


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_keeps_the_csv_and_names_loggers_that_exist(composed, option):
    node = composed(option)
    assert "csv" in node
    for logger in node.values():
        assert get_class(logger._target_)
    assert OmegaConf.to_container(node, resolve=True)


@pytest.mark.parametrize("option", ["csv", "tensorboard"])
def test_loggers_write_below_the_run_folder(composed, tmp_path, option):
    if option == "tensorboard":
        pytest.importorskip("tensorboard")
    for logger in (instantiate(node) for node in composed(option).values()):
        logger.log_metrics({"round": 1, "train/loss": 0.5}, step=1)
        logger.finalize("success")
    assert (tmp_path / "metrics.csv").exists()
    assert list(tmp_path.glob("tensorboard/events*")) or option == "csv"


def test_mlflow_keeps_its_store_below_the_run_folder(composed, tmp_path):
    assert composed("mlflow").mlflow.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db"
