"""Reads the config and the weights' place of a finished run from its folder. Torch-free."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from flfast.checkpoints.folders import (
    ABOUT,
    Checkpoint,
    checkpoint_dir,
    checkpoint_folders,
    find_checkpoints,
    read_checkpoint,
)
from flfast.checkpoints.policy import best_round
from flfast.config.check import check
from flfast.config.errors import ConfigError, refused
from flfast.config.own import GROUPS, NOTHING, Own
from flfast.config.phases import AUTO_SIZES, Phase, compose_phases, replace_auto
from flfast.config.saved_config import check_saved, read_config
from flfast.config.saved_options import allowed_names, check_known, overridden
from flfast.config.trust import short, targets
from flfast.output.results.history import Row, parsed
from flfast.output.results.table import read_history

log = logging.getLogger(__name__)


class SavedRun(NamedTuple):
    """A run folder, and the weights in it that shall be used.

    Attributes:
        folder: folder of the run.
        phases: phases of its config, with the overrides of the command.
        rows: rows of its `metrics.csv`, as numbers; text is left out.
        newest: the run's newest checkpoint that can be read.
        checkpoint: that has the weights; None: the files written at the end of the run.
        model: a file of the server's weights instead of those of the run.
        objects: objects of a Python program in place of what the config names.
    """

    folder: Path
    phases: list[Phase]
    rows: list[dict[str, Any]]
    newest: Checkpoint | None
    checkpoint: Checkpoint | None
    model: Path | None
    objects: Own = NOTHING

    @property
    def config(self) -> DictConfig:
        """The config of round 1."""
        return self.phases[0].config


def find_run(
    options: Mapping[str, str],
    overrides: Sequence[str],
    objects: Own,
    needed: Sequence[str] = GROUPS,
) -> SavedRun:
    """The run that a command names, checked as far as that is possible without torch.

    Of the options it reads `run`, `allow`, `checkpoint` and `model`. If the run had objects of a
    program, those of the `needed` groups must be here.

    Raises:
        ConfigError: if folder, weights or overrides are wrong.
    """
    folder = Path(options["run"])
    given = read_config(folder, allowed_names(options))
    objects.put_into(given)
    objects.require(given, folder, needed)
    check_known(overrides, given, known=[*options, "run", "checkpoint", "model"])
    config = overridden(given, overrides)
    if overrides:
        check(config)
    else:
        check_saved(config, folder)
    with refused():
        rows = [_numbers(row) for row in read_history(folder / "metrics.csv")]
    _check_rounds(folder, config, rows)
    if "checkpoint" in options and "model" in options:
        raise ConfigError("model and checkpoint exclude each other; set one of them")
    checkpoint, model = None, None
    if "checkpoint" in options:
        checkpoint = _find_checkpoint(options["checkpoint"], folder, config, rows)
    elif "model" in options:
        model = Path(options["model"])
        if not model.is_file():
            raise ConfigError(f"model={model}: there is no such file")
    elif not any((folder / name).exists() for name in ("model.pt", "shared.pt", "personal")):
        raise ConfigError(
            f"run={folder} has no model.pt: the run has not ended, or callbacks=none; allowed: "
            f"checkpoint=last, which also evaluates a run that has not ended"
        )
    phases = compose_phases(config, partial(_compose_phase, config))
    newest = _newest(folder)
    phases = _with_sizes(phases, newest)
    return SavedRun(folder, phases, rows, newest, checkpoint, model, objects)


def _compose_phase(config: DictConfig, more: Sequence[str]) -> DictConfig:
    """The config of a phase; its overrides are the run's, so they bring no target of their own.

    Raises:
        ConfigError: if they do, or look something up.
    """
    for word in more:
        if "$" in word:  # Hydra's grammar has more than one way to write an interpolation
            raise ConfigError(f"schedule.phases: {short(word)}: allowed: plain values")
    found = overridden(config, more)
    OmegaConf.update(found, "trainer.profiler", None)
    before, after = (
        {(part.key, part.name) for part in targets(OmegaConf.to_container(c, resolve=True))}
        for c in (config, found)
    )
    for key, name in sorted(after - before):
        raise ConfigError(f"{key}._target_={short(name)}: allowed: a target of the whole run")
    return found


def _check_rounds(folder: Path, config: DictConfig, rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a config of fewer rounds than the run has done: it is not of these rows."""
    done = max((row.get("round", 0) for row in rows), default=0)
    if done > config.rounds:
        raise ConfigError(
            f"{folder / '.hydra' / 'config.yaml'}: rounds={config.rounds}, and metrics.csv has "
            f"round {done}; allowed: the config of the run, with rounds >= {done}"
        )


def _find_checkpoint(
    name: str, folder: Path, config: DictConfig, rows: Sequence[Mapping[str, Any]]
) -> Checkpoint:
    where = f"checkpoint={name}"
    try:
        if name == "last":
            found = find_checkpoints("auto", folder)
            if not found:
                raise ValueError(f"{folder} has none; train with checkpoint.every=auto")
            for path in checkpoint_folders(folder):
                if path.name > found[0].path.name:
                    log.warning("%s cannot be read; %s is used", path, found[0].path.name)
            return found[0]
        if name == "best":
            return _best(folder, config.checkpoint.keep_best, rows)
        if not (Path(name) / ABOUT).exists():
            raise ValueError("no checkpoint; allowed: last, best, or its folder")
        return read_checkpoint(Path(name).absolute())
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _best(folder: Path, column: str | None, rows: Sequence[Mapping[str, Any]]) -> Checkpoint:
    if column is None:
        raise ValueError("the run kept none; train with checkpoint.keep_best=val/loss")
    best = best_round(rows, column)
    if best is None:
        raise ValueError(f"{folder / 'metrics.csv'} has no values of {column}")
    return read_checkpoint(checkpoint_dir(folder.absolute(), best))


def _newest(folder: Path) -> Checkpoint | None:
    try:
        return next(iter(find_checkpoints("auto", folder)), None)
    except ValueError:  # none of them can be read
        return None


def _with_sizes(phases: list[Phase], newest: Checkpoint | None) -> list[Phase]:
    """Phases without `auto` sizes, which the run's checkpoints have as numbers."""
    if newest is not None:
        phases = replace_auto(phases, newest.about["sizes"])
    unknown = [key for key in AUTO_SIZES for phase in phases if phase.config[key] == "auto"]
    if unknown and phases[0].config.finetune_epochs:
        raise ConfigError(
            f"{unknown[0]}=auto with finetune_epochs={phases[0].config.finetune_epochs}: the run "
            f"left no checkpoint with the number that it stood for; set {unknown[0]}"
        )
    return replace_auto(phases, dict.fromkeys(unknown, 1))  # no local step is taken


def _numbers(row: Row) -> dict[str, Any]:
    cells = {name: parsed(cell) for name, cell in row.items()}
    found = {name: cell for name, cell in cells.items() if isinstance(cell, (int, float))}
    return {name: int(cell) if name == "round" else cell for name, cell in found.items()}
