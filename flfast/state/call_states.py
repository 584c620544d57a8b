"""Client states after each call in files, so that a call can be answered again from its start."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from flfast.state.store import ClientStates
from flfast.state.tensor_file import check_tensors, write_tensors

_SUFFIX = ".state"


class Position(NamedTuple):
    """A call of a run.

    Attributes:
        round_idx: the round, from 1.
        number: call of the round, from 0.
        launch: how often the server had been started then; after a resume, calls are made again.
    """

    round_idx: int
    number: int
    launch: int

    @property
    def call(self) -> tuple[int, int]:
        """Round and call of the round."""
        return self.round_idx, self.number


class OldCallError(ValueError):
    """A call that the server has gone on from: a message that comes late, or twice."""


class CallStates:
    """States after each call that may still be gone back to, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, states: ClientStates, *, before: Position) -> None:
        """Replace states by the newest ones that are older than a call; by none before all.

        States of an earlier launch that are not older are removed: the server has gone back.

        Raises:
            OldCallError: if there are states of a later call of this launch, or of a later launch.
        """
        older: Position | None = None
        for position in self.positions():
            if position.call < before.call:
                older = position
            elif position.launch < before.launch:
                self._path(position).unlink()
            elif position > before:
                raise OldCallError(f"round {before.round_idx}: the server has gone on")
        saved: Any = {"stacks": []}
        if older is not None:
            check_tensors(self._path(older))
            saved = torch.load(self._path(older), weights_only=True)
        states.load_state_dict(saved)

    def save(self, states: ClientStates, *, after: Position, oldest: int) -> None:
        """Write states after a call.

        Files are removed that are of no use to a server that may go back to the end of round
        `oldest`, but not before.
        """
        write_tensors(self._path(after), states.state_dict())
        old = [position for position in self.positions() if position.round_idx <= oldest]
        for position in old[:-1]:  # the last of them is what that server's next call starts from
            self._path(position).unlink()

    def positions(self) -> list[Position]:
        """Calls after which there are states, in order."""
        names = [path.stem.split("-") for path in self._folder.glob(f"*-*-*{_SUFFIX}")]
        return sorted(Position(*map(int, name)) for name in names)

    def _path(self, position: Position) -> Path:
        return self._folder / f"{'-'.join(map(str, position))}{_SUFFIX}"
