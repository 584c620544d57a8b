"""What a command may do in its folder: begin a run, go on, or leave a finished one. Torch-free."""

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

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


class Decision(NamedTuple):
    """What becomes of the folder of a run, if it is not refused.

    Attributes:
        becomes: `begins` is a new run, in place of one that is there; `goes on` is the run of a
            checkpoint; `unchanged` is one that has finished with this config.
        value: `optimized_metric` of an unchanged run; None if it was not measured.
        checkpoints: that the run may go on from, newest first.
        restarted: whether the ranks that began the folder's run were started again.
    """

    becomes: Literal["begins", "goes on", "unchanged"]
    value: float | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    restarted: bool = False

    @property
    def newest(self) -> Checkpoint | None:
        """The newest checkpoint."""
        return self.checkpoints[0] if self.checkpoints else None


def plain_config(config: DictConfig) -> dict[str, Any]:
    """The config as JSON has it: keys are text, tuples are lists."""
    values: Any = OmegaConf.to_container(config, resolve=True)
    plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return plain


def recorded_config(config: DictConfig, folder: Path) -> dict[str, Any]:
    """The config as `result.json` has it: with `.` for the run's folder, which may be moved."""
    text = json.dumps(plain_config(config))
    recorded: dict[str, Any] = json.loads(text.replace(json.dumps(str(folder))[1:-1], "."))
    return recorded


def decision(config: DictConfig, folder: Path, *, setting: str | None = None) -> Decision:
    """Decide what becomes of a folder, by the table of docs/operations.md.

    `setting` is what the user would change to get another folder, for messages; by default
    `hydra.run.dir=` and the folder.

    Raises:
        ConfigError: if a run would be lost or mixed with another one. It has all differences
            between the configs, if the run in the folder or the checkpoint is of another
            experiment. Also if there is no checkpoint to go on from.
    """
    setting = setting or f"hydra.run.dir={folder}"
    said = read_result(folder)
    now = {} if said is None else recorded_config(config, folder)
    restarted = said is not None and _is_restarted(config, said, now)
    may_be_unchanged = restarted or config.resume == "auto"
    if said is not None and may_be_unchanged and _is_finished(said, now):
        return Decision("unchanged", said.value)
    try:
        checkpoints = _checkpoints(config, folder, restarted=restarted)
        if checkpoints and not restarted:
            _check_checkpoint(config, folder, checkpoints[0], setting)
        elif not restarted and holds_run(folder):
            _check_beginning(config, said, folder, setting)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"resume={config.resume}: the checkpoint's config is broken, "
            f"{type(error).__name__}: {error}"
        ) from None
    becomes: Literal["begins", "goes on"] = "goes on" if checkpoints else "begins"
    return Decision(becomes, None, tuple(checkpoints), restarted)


def _is_restarted(config: DictConfig, said: Result, now: dict[str, Any]) -> bool:
    """Whether the ranks that began the folder's run were started again, and this is one of them.

    How a run that was interrupted ended depends on who noticed first: torchrun asks ranks to stop
    when a node comes or goes, and a rank that loses another one fails.
    """
    if not _same_launch(said) or (said.outcome == "finished" and config.overwrite):
        return False
    return not differences(said.config, now)


def _same_launch(said: Result) -> bool:
    restarted = integer("TORCHELASTIC_RESTART_COUNT", 0) > 0
    if restarted and integer("RANK", 0) > 0:
        return True  # of a launch without a name only rank 0 knows whether it began this run
    if said.launch is None or said.launch != launch_id():
        return False
    # torchrun counts on each node for itself: one that has come back has had no restart.
    return restarted or not said.launch.startswith(UNNAMED)


def _is_finished(said: Result, now: dict[str, Any]) -> bool:
    """Whether the folder's run has finished with this config, but for keys of the command."""

    def rest(config: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in config.items() if influence(key) != "command"}

    if said.outcome != "finished" or not isinstance(said.config, dict):
        return False
    return rest(said.config) == rest(now)


def _checkpoints(config: DictConfig, folder: Path, *, restarted: bool) -> list[Checkpoint]:
    goes_on = restarted or config.resume == "auto"
    checkpoints = find_checkpoints("auto", folder) if goes_on else []
    if checkpoints or config.resume in {None, "auto"}:
        return checkpoints
    return find_checkpoints(config.resume, folder)


def _check_beginning(config: DictConfig, said: Result | None, folder: Path, setting: str) -> None:
    """Check whether a run without a checkpoint may be replaced, or begin again."""
    if config.resume is None:
        if not config.overwrite:
            raise _taken(folder, setting, "resume=auto to go on with it")
        return
    if said is None:
        raise ConfigError(
            f"resume=auto: {setting} holds a run without a checkpoint, and nothing says with "
            f"which settings it began; allowed: overwrite=true to replace it, or another folder"
        )
    check_same_experiment(said.config, recorded_config(config, folder), done=0)
    if said.outcome == "finished":
        raise ConfigError(
            f"resume=auto: {setting} holds a run that has finished without a checkpoint, so it "
            f"cannot go on with other settings; allowed: the settings that it had, "
            f"overwrite=true to replace it, or another folder"
        )


def _check_checkpoint(
    config: DictConfig, folder: Path, checkpoint: Checkpoint, setting: str
) -> None:
    """Check whether a checkpoint of this experiment may go on in the folder."""
    before, now = checkpoint.about["config"], plain_config(config)
    check_same_experiment(before, now, done=checkpoint.round_idx)
    if config.resume == "auto":
        return
    is_here = real_folder(checkpoint.run_dir) == real_folder(folder)
    if is_here and config.overwrite:
        raise ConfigError(
            f"overwrite=true with resume={config.resume}: the checkpoint is of the run that "
            f"would be replaced; allowed: overwrite=false"
        )
    if not is_here and holds_run(folder) and not config.overwrite:
        raise _taken(folder, setting, "resume=auto to go on with that one")


def _taken(folder: Path, setting: str, going_on: str) -> ConfigError:
    became = outcome(folder, own_lock=is_held(folder))
    if became == "running":
        return FolderBusyError(busy(setting, "another run"))
    return ConfigError(
        f"{setting} already holds a run, which is {became}; allowed: {going_on}, "
        f"overwrite=true to replace it, or another folder"
    )
