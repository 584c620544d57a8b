"""`flfast.run` and `flfast.compose`: the command line's names, from Python. Torch-free."""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from flfast.api.arguments import Arguments, check_objects, check_settings, check_words
from flfast.api.result import Run
from flfast.config import composition
from flfast.config.check import check
from flfast.config.command_line import at_home, check_environment, check_overrides
from flfast.config.decision import decision
from flfast.config.errors import ConfigError, RunStopped
from flfast.config.explain import message
from flfast.config.implied import implied
from flfast.config.job import HydraJob
from flfast.config.own import GROUPS, NOTHING, Own
from flfast.config.phases import Phase
from flfast.config.run_folder import hold_folder, recorded
from flfast.state.real_folder import literal, real_folder
from flfast.state.stop_requests import StoppedAtEndError, StoppedError, signals_afterwards

if TYPE_CHECKING:
    import lightning as L
    from torch import nn

    from flfast.algorithms.contract.algorithm import Algorithm

_NO_FOLDER = "outputs/DATE/TIME"
"""What `${hydra:runtime.output_dir}` stands for before there is a run."""

_busy = threading.Lock()


def compose(*overrides: str, **settings: NoReturn) -> DictConfig:
    """The config that `run` would run, checked.

    Args:
        overrides: as on the command line, such as `"algorithm=fedprox"`.
        settings: none is allowed; the error says how to write them.

    Raises:
        ConfigError: with the command line's message, if a setting is wrong.
    """
    check_settings(settings, known=(), caller="flfast.compose")
    return filled(composed(overrides), NOTHING)


def run(  # noqa: PLR0913 - one parameter an option
    *overrides: str,
    folder: str | Path | None = None,
    data: Any = None,
    test_data: Any = None,
    target: str | None = None,
    client: Any = None,
    labels: Any = None,
    model: "nn.Module | Callable[..., nn.Module] | None" = None,
    algorithm: "Algorithm | Callable[..., Algorithm] | None" = None,
    callbacks: "Sequence[L.Callback]" = (),
    **settings: NoReturn,
) -> Run:
    """Run a federation, as the command line does with the same words.

    Args:
        overrides: as on the command line, such as `"algorithm=fedprox"`, `"rounds=5"`.
        folder: of the run; by default a new one, `outputs/DATE/TIME`. With `"resume=auto"` the
            run in that folder goes on.
        data: examples in place of `data=NAME`: a pair (inputs, targets) of tensors or arrays,
            or a triple with the client of each example; a map-style `Dataset` of such pairs or
            triples; a pandas DataFrame; an `Examples`, or a function that returns one. If they
            name clients, these are the clients of the run, unless `partition` is set. Examples
            without labels, as of a regression, are divided by `partition=iid`. With a
            LightningModule: its DataModule, or data whose samples are of any structure; see
            docs/lightning.md.
        test_data: the central test set in the same form, or with clients their own test sets.
        target: column of a DataFrame with the targets: integers from 0, or with
            `"task=regression"` numbers.
        client: column of a DataFrame with the clients, if there are any. Of a LightningModule's
            data: a name for each sample; or an attribute of the Dataset, or a key or index of a
            sample, that holds it; or a function of a sample.
        labels: of a LightningModule's data, the class of each sample likewise, for partitions.
        model: in place of `model=NAME`: a module, which is copied and whose weights are the
            initial ones, or a function of (input_shape, num_classes), or of fewer.
        algorithm: in place of `algorithm=NAME`: an `Algorithm`, or a function that gets what its
            signature names of initial, batchnorm, seed, num_clients.
        callbacks: of Lightning, in addition to those of the config; see docs/callbacks.md.
        settings: none is allowed; the error says how to write them.

    Raises:
        ConfigError: with the command line's message, if a setting cannot be run; also inside
            `torch.inference_mode` and `torch.autocast`, and with another default device or dtype.
        RunStopped: after the round and a checkpoint, on Ctrl-C, SIGTERM or SIGUSR1. After the last
            round there is no other: the run finishes, and the program gets the signal then.
    """
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise ConfigError(
            "flfast.run: this process imports the script that started it; put the call of "
            'flfast.run under `if __name__ == "__main__":`'
        )
    given = Arguments(data, test_data, target, client, labels, model, algorithm)
    known = ["folder", *Arguments._fields, "callbacks"]
    check_settings(settings, known=known, caller="flfast.run")
    check_words(overrides)
    check_objects(given, folder)
    check_environment()
    if "torch" in sys.modules:  # otherwise it is as at its start
        from flfast.api.session import check_surroundings

        check_surroundings()
    with _alone():
        objects = NOTHING
        if any(value is not None for value in given):
            from flfast.api.own_objects import own_objects  # imports torch

            objects = own_objects(given, overrides)
        if callbacks:
            from flfast.api.own_objects import with_callbacks  # imports torch

            objects = with_callbacks(objects, callbacks)
        _refuse_options(objects, overrides)
        words = [*_implied_by(objects, overrides), *overrides]
        return run_composed(composed(words), objects, folder)


@signals_afterwards()
def run_composed(
    composed: DictConfig, objects: Own, folder: str | Path | None, **further: Any
) -> Run:
    """Run a composed config; `further` are arguments of `setup/launch.py`."""
    for group in objects.nodes.keys() & set(GROUPS):  # for titles
        target = objects.nodes[group]["_target_"]
        name = "own data" if group == "data" else target.rpartition(".")[2]
        if group == "algorithm":
            name = getattr(objects.algorithm, "name", name)
        composed.hydra.runtime.choices[group] = name
    filled(composed, objects)  # before there is a folder
    if folder is not None:
        composed.hydra.run.dir = literal(folder)
    place = real_folder(composed.hydra.run.dir)
    with hold_folder(place, key="folder"):
        composed.hydra.runtime.output_dir = literal(place)
        job = HydraJob.of(composed, objects=objects)
        try:
            phases = job.phases()
        except HydraException as error:
            raise ConfigError(message(error, job.overrides)) from None
        decided = decision(phases[0].config, place, setting=f"folder={place}")
        if decided.becomes != "unchanged":
            _start(phases, job, further)
    return Run.of(place, objects, phases[0].config)


def _start(phases: list[Phase], job: HydraJob, further: dict[str, Any]) -> None:
    from flfast.api.session import session  # these import torch
    from flfast.setup.launch import run as launch

    with session(job):
        try:
            recorded(job.folder, partial(launch, phases, job, second="raise", **further))
        except StoppedAtEndError:
            return
        except StoppedError:
            raise RunStopped(
                f"the run was stopped and can go on: flfast.run(..., 'resume=auto', "
                f"folder={str(job.folder)!r})"
            ) from None


@contextmanager
def _alone() -> Iterator[None]:
    """Keep a second run out of this process: seeds and threads of torch belong to the process."""
    if not _busy.acquire(blocking=False):
        raise ConfigError(
            "flfast.run: another run is going on in this process; allowed: one after the other, "
            "or processes of their own"
        )
    try:
        yield
    finally:
        _busy.release()


def composed(overrides: Sequence[str]) -> DictConfig:
    """The config with Hydra's own node; refuses flags, and names of no key or no option.

    Raises:
        ConfigError: with the command line's message.
    """
    check_words(overrides)
    overrides = [at_home(word) for word in overrides]
    try:
        check_overrides(overrides)
        composed = composition.compose([*overrides, *implied(overrides)])
    except Exception as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        raise ConfigError(message(error, overrides)) from None
    OmegaConf.set_struct(composed.hydra, value=False)
    if composed.hydra.mode == RunMode.MULTIRUN:
        raise ConfigError(
            "flfast.run trains once, and these settings are a search; allowed: "
            "python -m flfast.train with the same settings"
        )
    composed.hydra.mode = RunMode.RUN
    composed.hydra.job.name = "train"  # as on the command line: the log is train.log
    composed.hydra.runtime.output_dir = _NO_FOLDER
    return composed


def filled(composed: DictConfig, objects: Own) -> DictConfig:
    """The config that runs, without Hydra's own node, checked."""
    job = HydraJob.of(composed, objects=objects)
    config = job.fill(job.given)
    check(config)
    return config


def _implied_by(objects: Own, overrides: Sequence[str]) -> list[str]:
    """Settings that objects bring, unless they are chosen.

    A LightningModule with a step of its own brings its task and its optimizer. Data bring the
    partition that suits them: their clients, or iid without labels.
    """
    words = ["task=module", "optimizer=module"] if objects.trains_itself else []
    if hasattr(objects.data, "owner"):  # otherwise no data, or a function that returns them
        if objects.data.owner is not None:
            words.append("partition=natural")
        elif objects.data.classes is None:
            words.append("partition=iid")
    chosen = {word.partition("=")[0] for word in overrides}
    return [word for word in words if word.partition("=")[0] not in chosen]


def _refuse_options(objects: Own, overrides: Sequence[str]) -> None:
    for word in overrides:
        group = word.lstrip("+~").partition("=")[0].partition(".")[0]
        if group in GROUPS and group in objects.nodes:
            raise ConfigError(
                f"{word}: flfast.run has {group}=, too; allowed: one of the two, and options "
                f"such as {group}.NAME without an object only"
            )
