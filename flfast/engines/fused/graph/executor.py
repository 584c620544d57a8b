"""Executors run the loop over a traced local step: their interface, and which one is used."""

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import Protocol

from torch import Tensor
from torch.fx import GraphModule

from flfast.engines.fused.graph.instructions import Instructions, instructions
from flfast.engines.fused.graph.straight_line import StraightLine
from flfast.engines.fused.graph.tape import Tape
from flfast.state.native.compiler import missing

log = logging.getLogger(__name__)

VARIABLE = "FLFAST_EXECUTOR"
"""Environment variable that forces an executor by name."""


class Executor(Protocol):
    """A program that runs a step several times, each time on the next row of its inputs.

    Attributes:
        reads: for every fixed input, whether the step reads it.
    """

    reads: list[bool]

    def __call__(self, fixed: list[Tensor], rows: list[Tensor], *, num: int, width: int) -> None:
        """Run `num` steps, of `width` clients in a stack; 1 for a single client.

        All steps share the `fixed` inputs, some of which the step changes in place. Step i reads
        row i of `rows`, each [num, ...].
        """


EXECUTORS: dict[str, Callable[[Instructions], Executor]] = {
    "tape": Tape,
    "straight-line": StraightLine,
}
"""By name, fastest first."""


def executor(*modules: GraphModule, sliced: int) -> Executor:
    """Compile a traced step for the chosen executor; arguments are as of `instructions`.

    Raises:
        NotImplementedError: if the steps of two stacks do not match; see `instructions`.
        RuntimeError: if the executor does not know an operator.
        ValueError: if the environment variable names no executor.
    """
    name, _ = choice(wanted())
    return EXECUTORS[name](instructions(*modules, sliced=sliced))


def wanted() -> str:
    """The executor that the environment variable names; empty if it is not set.

    Raises:
        ValueError: if the variable names no executor.
    """
    name = os.environ.get(VARIABLE, "")
    if name and name not in EXECUTORS:
        raise ValueError(f"{VARIABLE}={name}; allowed: {', '.join(EXECUTORS)}")
    return name


@cache
def choice(name: str) -> tuple[str, str]:
    """The name of the executor that all programs use, and the reason; `name` forces one."""
    if name:
        chosen, why = name, f"{VARIABLE} asks for it"
    elif (reason := missing()) is None:
        chosen, why = "tape", "our C++ is loaded"
    else:
        chosen, why = "straight-line", f"our C++ is missing: {reason}"
    log.info("local steps run as %s: %s", chosen, why)  # once per process
    return chosen, why
