"""What a run needs of its process, and gives back as it was: log, threads, seeds, precision."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch

from flfast.config.errors import ConfigError
from flfast.config.job import HydraJob
from flfast.state.fp32 import use_fp32
from flfast.state.output_streams import surviving_output
from flfast.state.randomness import same_generators


@contextmanager
def session(job: HydraJob) -> Iterator[None]:
    """Context of a run: `train.log` is written; afterwards the process is as it was before.

    Log lines are also shown on the screen, unless the program has set up its own logging.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        gpus = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
        stack.enter_context(torch.random.fork_rng(devices=gpus))
        stack.enter_context(same_generators())
        stack.enter_context(_same_threads())
        stack.callback(use_fp32, None)
        stack.enter_context(surviving_output())
        stack.enter_context(_logging(job))
        yield


@contextmanager
def _same_threads() -> Iterator[None]:
    threads, variable = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.environ.pop("OMP_NUM_THREADS", None)
        if variable is not None:
            os.environ["OMP_NUM_THREADS"] = variable


@contextmanager
def _logging(job: HydraJob) -> Iterator[None]:
    hydra = job.hydra.hydra
    root = logging.getLogger()
    level = root.level
    handlers: list[logging.Handler] = []
    others = root.handlers[:]
    wanted = partial(_is_wanted, level=level)
    for handler in others:
        handler.addFilter(wanted)
    if not others:
        handlers.append(logging.StreamHandler(sys.stdout))
    log = job.folder / f"{hydra.job.name}.log"
    handlers.append(logging.FileHandler(log, encoding="utf-8", delay=True))
    for handler in handlers:
        handler.setFormatter(logging.Formatter(hydra.job_logging.formatters.simple.format))
        root.addHandler(handler)
    root.setLevel(min(level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        root.setLevel(level)
        for handler in others:
            handler.removeFilter(wanted)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def _is_wanted(record: logging.LogRecord, *, level: int) -> bool:
    """Whether the program's own root level lets a record pass: ours is lower, for `train.log`."""
    logger = logging.getLogger(record.name)
    while logger.parent is not None:
        if logger.level:
            return True  # a level of its own was passed already
        logger = logger.parent
    return record.levelno >= level


def check_surroundings() -> None:
    """Refuse to run in a mode of torch, or with defaults, that would change the numbers.

    Gradients that are off are no matter: training turns them on.

    Raises:
        ConfigError: naming the mode or the default, and what is allowed.
    """
    device, dtype = torch.get_default_device(), torch.get_default_dtype()
    wrong = {
        "inside torch.inference_mode(): nothing can be trained; allowed: outside of it": (
            torch.is_inference_mode_enabled()
        ),
        "inside torch.autocast(): allowed: outside of it, with trainer.precision=bf16-mixed": any(
            map(torch.is_autocast_enabled, ("cpu", "cuda"))
        ),
        f"torch's default device is {device}; allowed: cpu; trainer.accelerator=gpu trains on "
        f"GPUs": device.type != "cpu",
        f"torch's default dtype is {dtype}; allowed: torch.float32; trainer.precision=64-true or "
        f"bf16-true trains in another one": dtype != torch.float32,
    }
    for problem, found in wrong.items():
        if found:
            raise ConfigError(f"flfast.run: {problem}")
