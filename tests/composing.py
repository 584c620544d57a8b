"""Configs of all options, and words that several tests compose."""

from copy import deepcopy
from functools import cache
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from flfast.config.composition import CONF, compose, without_hydra

FILES = (
    "callbacks=files",
    *(f"~callbacks.{name}" for name in ("curves", "partition_report", "report_page", "monitor")),
)
"""Of a run: its weights and tables. Pictures take longer than the rounds of most tests."""


@cache
def _composed(*options: str) -> DictConfig:
    return without_hydra(compose(["logger=none", *options]))


def composed(option: str = "") -> DictConfig:
    """A new config with an option such as `model=cnn`, and without what only a job knows.

    Hydra composes it only where the option's file changes more than its own group.
    """
    group, _, name = option.partition("=")
    text = (Path(CONF) / group / f"{name}.yaml").read_text(encoding="utf-8") if option else ""
    if "defaults:" in text or "@package" in text:
        return deepcopy(_composed(option))
    config = deepcopy(_composed())
    OmegaConf.set_struct(config, value=False)
    if option:
        config[group] = OmegaConf.create(text)
    return config
