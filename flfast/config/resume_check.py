"""Whether a command may use its folder: begin there, go on, or replace a run. Torch-free."""

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from flfast.checkpoints.compatibility import check_same_experiment, differences
from flfast.checkpoints.folders import Checkpoint, find_checkpoints
from flfast.config.errors import ConfigError, FolderBusyError
from flfast.config.folder_lock import busy
from flfast.config.run_folder import is_held
from flfast.output.results.outcome import Result, holds_run, outcome, read_result
from flfast.state.config_keys import influence
from flfast.state.environment import UNNAMED, integer, launch_id
from flfast.state.real_folder import real_folder


def plain_config(config: DictConfig) -> dict[str, Any]:
    """The config as JSON has it: keys are text, tuples are lists."""
    values: Any = OmegaConf.to_container(config, resolve=True)
    found: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return found


def recorded_config(config: DictConfig, folder: Path) -> dict[str, Any]:
    """The config as `result.json` has it: with `.` for the run's folder, which may be moved."""
    text = json.dumps(plain_config(config))
    found: dict[str, Any] = json.loads(text.replace(json.dumps(str(folder))[1:-1], "."))
    return found


def finished_before(config: DictConfig, folder: Path) -> Result | None:
    """The result of the run that goes on, if it has finished with this config; else None."""
    said = read_result(folder)
    if said is None or said.outcome != "finished":
        return None
    if config.resume != "auto" and not began_before(config, folder):
        return None
    now = recorded_config(config, folder)
    return said if _same(said.config, now) else None


def began_before(config: DictConfig, folder: Path) -> bool:
    """Whether the ranks that began the folder's run were started again, and this is one of them.

    How a run that was interrupted ended depends on who noticed first: torchrun asks ranks to stop
    when a node comes or goes, and a rank that loses another one fails.
    """
    said = read_result(folder)
    if said is None or not _same_launch(said) or (said.outcome == "finished" and config.overwrite):
        return False
    now = recorded_config(config, folder)
    return not differences(said.config, now)


def _same_launch(said: Result) -> bool:
    restarted = integer("TORCHELASTIC_RESTART_COUNT", 0) > 0
    if restarted and integer("RANK", 0) > 0:
        return True  # of a launch without a name only rank 0 knows whether it began this run
    if said.launch is None or said.launch != launch_id():
        return False
    # torchrun counts on each node for itself: one that has come back has had no restart.
    return restarted or not said.launch.startswith(UNNAMED)


def check_folder(config: DictConfig, folder: Path, *, setting: str | None = None) -> None:
    """Refuse to lose or to mix runs: the table of docs/operations.md.

    `setting` is what the user would change to get another folder, for messages; by default
    `hydra.run.dir=` and the folder.

    Raises:
        ConfigError: with all differences between the configs, if the run in the folder or the
            checkpoint is of another experiment; also if there is no checkpoint to go on from.
    """
    setting = setting or f"hydra.run.dir={folder}"
    if began_before(config, folder):
        return
    try:
        if config.resume == "auto":
            _check_run(config, folder, setting)
        elif config.resume is not None:
            _check_checkpoint(config, folder, setting)
        elif holds_run(folder) and not config.overwrite:
            raise _taken(folder, setting, "resume=auto to go on with it")
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"resume={config.resume}: the checkpoint's config is broken, "
            f"{type(error).__name__}: {error}"
        ) from None


def _check_run(config: DictConfig, folder: Path, setting: str) -> None:
    """Check whether the run in the folder, if any, goes on with this config."""
    for checkpoint in find_checkpoints("auto", folder)[:1]:
        _check_same(config, checkpoint)
        return
    if not holds_run(folder):
        return
    said = read_result(folder)
    if said is None:
        raise ConfigError(
            f"resume=auto: {setting} holds a run without a checkpoint, and nothing says with "
            f"which settings it began; allowed: overwrite=true to replace it, or another folder"
        )
    now = recorded_config(config, folder)
    check_same_experiment(said.config, now, done=0)
    if said.outcome == "finished" and not _same(said.config, now):
        raise ConfigError(
            f"resume=auto: {setting} holds a run that has finished without a checkpoint, so it "
            f"cannot go on with other settings; allowed: the settings that it had, "
            f"overwrite=true to replace it, or another folder"
        )


def _check_checkpoint(config: DictConfig, folder: Path, setting: str) -> None:
    """Check whether the named checkpoint may go on in the folder."""
    for checkpoint in find_checkpoints(config.resume, folder)[:1]:
        _check_same(config, checkpoint)
        own = real_folder(checkpoint.run_dir) == real_folder(folder)
        if own and config.overwrite:
            raise ConfigError(
                f"overwrite=true with resume={config.resume}: the checkpoint is of the run that "
                f"would be replaced; allowed: overwrite=false"
            )
        if not own and holds_run(folder) and not config.overwrite:
            raise _taken(folder, setting, "resume=auto to go on with that one")


def _check_same(config: DictConfig, checkpoint: Checkpoint) -> None:
    before = checkpoint.about["config"]
    check_same_experiment(before, plain_config(config), done=checkpoint.round_idx)


def _taken(folder: Path, setting: str, going_on: str) -> ConfigError:
    found = outcome(folder, own_lock=is_held(folder))
    if found == "running":
        return FolderBusyError(busy(setting, "another run"))
    return ConfigError(
        f"{setting} already holds a run, which is {found}; allowed: {going_on}, "
        f"overwrite=true to replace it, or another folder"
    )


def _same(before: Any, now: dict[str, Any]) -> bool:
    def rest(config: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in config.items() if influence(key) != "command"}

    return isinstance(before, dict) and rest(before) == rest(now)
