"""The contract: how the examples of a client differ from the dataset's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from flfast.datamodules.examples import Examples

When = Literal["always", "test"]
"""The examples of a client that are shifted: all, or only its own test set."""

Drawn = dict[str, np.ndarray]
"""Drawn parameters of a shift, by name: [K, ...] for K clients, or [M, ...] for M examples."""


class Facts(NamedTuple):
    """Values of the run that a shift may read."""

    seed: int
    num_classes: int
    input_shape: tuple[int, ...]


class Affected(NamedTuple):
    """Examples to shift. M examples.

    Attributes:
        examples: their numbers among all examples, int64 [M].
        drawn: parameters of their clients' shifts, by name, [M, ...].
    """

    examples: np.ndarray
    drawn: Drawn
    facts: Facts


@dataclass(frozen=True)
class Shift:
    """A change of the examples of each client, applied when data are set up.

    `inputs` is a function of a module, or a `functools.partial` of one, since worker processes of
    a `DataLoader` may have to pickle it.

    Attributes:
        name: value of the option, such as `rotation`.
        at: examples of a client that are shifted: `always` all of them, `test` its own test set,
            `train` its training examples.
        draw: (clients int64 [K], facts) -> what each of them got, by name, [K, ...]; a function
            of the seed and the client.
        inputs: (inputs [M, ...], affected) -> new inputs of the same shape and type; each one
            depends on its own input only. None leaves them.
        targets: (targets [M, ...], affected) -> new targets, likewise; None leaves them.
        check: raises a ValueError for data that cannot be shifted so.
    """

    name: str
    at: Literal["always", "test", "train"] = "always"
    draw: Callable[[np.ndarray, Facts], Drawn] = lambda clients, facts: {}
    inputs: Callable[[Tensor, Affected], Tensor] | None = None
    targets: Callable[[Tensor, Affected], Tensor] | None = None
    check: Callable[[Examples], None] | None = None

    @property
    def changes(self) -> bool:
        """Whether there is anything to change."""
        return self.inputs is not None or self.targets is not None


NO_SHIFT = Shift("none")


def none() -> Shift:
    """All clients have examples as the dataset has them."""
    return NO_SHIFT
