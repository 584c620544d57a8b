"""Checks whether a run may resume from its checkpoint or start in its folder. Torch-free."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from flfast.checkpoints.compatibility import check_same_experiment
from flfast.checkpoints.folders import checkpoint_folders, find_checkpoints
from flfast.config.errors import ConfigError
from flfast.environment import integer


def check_resume(config: DictConfig, run_dir: Path, *, setting: str | None = None) -> None:
    """Refuse to resume another experiment, and to overwrite another run's checkpoints.

    Args:
        config: of the run.
        run_dir: its folder.
        setting: what the user would change to get another folder, for messages; by default
            `hydra.run.dir=` and the folder.

    Raises:
        ConfigError: with all differences between the configs, if `resume` is set; also if there
            is no checkpoint to resume from.
    """
    if config.resume is None:
        restarted = integer("TORCHELASTIC_RESTART_COUNT", 0) > 0  # by torchrun
        if checkpoint_folders(run_dir) and not restarted:
            raise ConfigError(
                f"{setting or f'hydra.run.dir={run_dir}'} already holds a run's checkpoints; "
                f"allowed: resume=auto to continue that run, or another folder"
            )
        return
    try:
        for checkpoint in find_checkpoints(config.resume, run_dir)[:1]:
            now: Any = OmegaConf.to_container(config, resolve=True)
            check_same_experiment(checkpoint.about["config"], now, done=checkpoint.round_idx)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"resume={config.resume}: the checkpoint's config is broken, "
            f"{type(error).__name__}: {error}"
        ) from None
