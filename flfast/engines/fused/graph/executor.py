"""How the loop over a traced step is run: one interface, and the choice among what there is."""

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.fx import GraphModule

from flfast.engines.fused.graph.instructions import Instructions, instructions
from flfast.engines.fused.graph.straight_line import StraightLine
from flfast.engines.fused.graph.tape import Tape
from flfast.engines.fused.graph.trace import operators
from flfast.state.tree import Tree

log = logging.getLogger(__name__)

VARIABLE = "FLFAST_EXECUTOR"
"""Of the environment: the name of an executor, in place of the choice."""


class Executor(Protocol):
    """A program that runs a step again and again, each time over the next rows.

    Attributes:
        reads: of every input that stays, whether the step needs it.
    """

    reads: list[bool]

    def __call__(self, fixed: list[Tensor], rows: list[Tensor], *, num: int, width: int) -> None:
        """Run `num` steps.

        Args:
            fixed: inputs that all steps share.
            rows: inputs of which step i reads [i], each [num, ...].
            num: steps.
            width: clients; 1 where the step is that of one.
        """


EXECUTORS: dict[str, Callable[[Instructions], Executor]] = {
    "tape": Tape,
    "straight-line": StraightLine,
}
"""By name, the faster first."""


def executor(*modules: GraphModule, sliced: int) -> Executor:
    """A program of a traced step.

    Args:
        modules: see `instructions`.
        sliced: see there.

    Raises:
        NotImplementedError: see `instructions`.
        RuntimeError: if the executor does not know an operator.
        ValueError: if the environment asks for an executor that there is not.
    """
    name, _ = choice(wanted())
    return EXECUTORS[name](instructions(*modules, sliced=sliced))


def wanted() -> str:
    """The executor that the environment asks for; empty if it asks for none.

    Raises:
        ValueError: if there is no such executor.
    """
    name = os.environ.get(VARIABLE, "")
    if name and name not in EXECUTORS:
        raise ValueError(f"{VARIABLE}={name}; allowed: {', '.join(EXECUTORS)}")
    return name


@cache
def choice(name: str) -> tuple[str, str]:
    """The name of the executor that all programs take, and why.

    Args:
        name: the one that is wanted; empty for the fastest that passes a trial.
    """
    if name:
        chosen, why = name, f"{VARIABLE} asks for it"
    elif (reason := trial("tape")) is None:
        chosen, why = "tape", "it agrees with straight-line"
    else:
        chosen, why = "straight-line", f"tape fails: {reason}"
    log.info("local steps run as %s: %s", chosen, why)  # once per process
    return chosen, why


def trial(name: str) -> str | None:
    """What speaks against an executor after three steps of a small program; None is nothing."""
    module = operators(_step, [{"w": torch.ones(2, 3)}, {"x": torch.ones(4, 3)}])
    code, rows = instructions(module, sliced=1), torch.linspace(-1, 1, 36).view(3, 4, 3)
    found, expected = torch.ones(2, 3), torch.ones(2, 3)
    try:
        EXECUTORS[name](code)([found], [rows], num=3, width=1)
    except Exception as error:  # noqa: BLE001 - whatever torch or a compiler says
        return next(iter(str(error).splitlines()), type(error).__name__)
    StraightLine(code)([expected], [rows], num=3, width=1)
    return None if torch.allclose(found, expected) else "other numbers"


def _step(state: Tree, batch: Tree) -> None:
    hidden = torch.tanh(batch["x"] @ state["w"].t())
    state["w"].sub_(torch.cat([hidden.t() @ batch["x"]]), alpha=0.1)
