"""The contract: how a run protects clients or examples, and what that costs in privacy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from torch import nn

from flfast.algorithms.contract import Algorithm
from flfast.channel.privacy.adaptive_clipping import AdaptiveClipping
from flfast.state.capabilities import NEUTRAL, Capabilities, needing
from flfast.state.tree import Tree

Unit = Literal["client", "example"]

PROTECTED = needing("messages", "statistics")
OF_STEPS = PROTECTED | needing("equal steps", "one objective", "kept activations")
"""Of noise in local steps, which protects single examples."""
OF_UPLOADS = PROTECTED | needing("one call", "protected parts")
BOUNDED = needing("one bound")
OF_SUMS = BOUNDED | needing("sums", "whole cohorts", "equal clients", "one broadcast")
"""Beside `OF_UPLOADS`, of noise that the server adds to the sum of a cohort's changes."""

Adjacency = Literal["add or remove", "replace", "zero out"]
"""How two neighbouring data sets differ: one unit more or less; another unit in its place; or its
contribution is zero while everything else, such as the order of clients, stays."""


class NoiseSource(Protocol):
    """Standard normal noise, a function of the source's seed and a path alone."""

    def __call__(self, like: Tree, *path: int) -> Tree:
        """Noise of the leaves' shapes and types, on the CPU.

        Args:
            like: floating-point leaves; only shapes and types are read.
            path: such as the round, or round and client; integers >= 0. All paths of a source
                have the same length.
        """


class CentralNoise(Protocol):
    """Noise that the server adds to the sum of a cohort's clipped changes."""

    def __call__(self, like: Tree, std: float, round_idx: int, source: NoiseSource) -> Tree:
        """Noise of the leaves' shapes and types, in round `round_idx`, from 1.

        `like` is the sum, learned leaves only; only shapes and types are read. `std` is
        `central_multiplier` times the clipping norm of the round. The source of the run is the
        same on all ranks.
        """


class Correlation(Protocol):
    """Turns independent noise into noise that cancels over rounds."""

    def __call__(self, z: Tree, round_idx: int, memory: Tree) -> tuple[Tree, Tree]:
        """The noise of a round, from 1, and the memory for the next one.

        `z` is the independent noise of the round, from `central_noise`. The memory is from the
        round before, and empty at first. It is in checkpoints.
        """


@dataclass(frozen=True)
class Privacy:
    """How changes are clipped and noised, and the guarantee that this gives.

    A change is an upload. Its norm is Euclidean over all learned leaves. With `expected_clients`,
    all clients weigh the same.

    Attributes:
        name: name of the option.
        clip_norm: C, bound on the norm of a change, in round 1 if it adapts; None is no bound.
        adaptive: how C changes from round to round; None keeps it.
        local_multiplier: each client adds N(0, (local_multiplier * C)^2) to every element of its
            clipped change.
        central_noise: added to the sum of clipped changes; None is none.
        central_multiplier: its standard deviation, divided by C.
        correlate: makes the server's noise depend on that of earlier rounds; None: as it is.
        expected_clients: what the noisy sum is divided by; None divides by the sum of weights.
        wrap: algorithm of one objective -> one that protects single examples in local
            training.
        check_model: raises a ValueError for models that `wrap` cannot protect.
        epsilon: rounds done -> epsilon at `delta`, never less than what is lost.
        delta: probability with which epsilon may be exceeded.
        unit: whom it protects.
        adjacency: which data sets epsilon compares.
        rounds: most rounds within `max_epsilon`; None: all of the run.
        secure: whether noise comes from the system's randomness; such a run cannot be repeated.
        warning: for the log, where the promise is not what one may expect; empty otherwise.
    """

    name: str
    clip_norm: float | None = None
    adaptive: AdaptiveClipping | None = None
    local_multiplier: float = 0.0
    central_noise: CentralNoise | None = None
    central_multiplier: float = 0.0
    correlate: Correlation | None = None
    expected_clients: float | None = None
    wrap: Callable[[Algorithm], Algorithm] | None = None
    check_model: Callable[[nn.Module], None] | None = None
    epsilon: Callable[[int], float] | None = None
    delta: float = 0.0
    unit: Unit | None = None
    adjacency: Adjacency | None = None
    rounds: int | None = None
    secure: bool = False
    warning: str = ""

    @property
    def capabilities(self) -> Capabilities:
        """What it needs and breaks."""
        if self.wrap is not None:
            return OF_STEPS
        summed = self.central_noise is not None or self.expected_clients is not None
        if not (self.unit or summed or self.local_multiplier or self.clip_norm):
            return NEUTRAL
        bounded = NEUTRAL if self.clip_norm is None else BOUNDED
        return OF_UPLOADS | bounded | (OF_SUMS if summed else NEUTRAL)


StepNoise = Annotated[Privacy, OF_STEPS]
UploadNoise = Annotated[Privacy, OF_UPLOADS | BOUNDED]
SumNoise = Annotated[Privacy, OF_UPLOADS | OF_SUMS]


NO_PRIVACY = Privacy("none")


def none() -> Privacy:
    """Changes are neither clipped nor noised."""
    return NO_PRIVACY
