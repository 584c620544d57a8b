"""Writes `events.csv`: one row per event in virtual time."""

from typing import Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from flfast.federation.loop import Federation
from flfast.federation.paces.pace import Event, Turn
from flfast.output.results.columns import EVENT_COLUMNS
from flfast.output.results.table import RoundTable


class EventsTable(Callback):
    """Writes what happens in virtual time; a resumed run continues the file.

    There is no file if the pace measures no time.
    """

    file_name = "events.csv"

    def __init__(self) -> None:
        super().__init__()
        self._table: RoundTable | None = None
        self._events: list[Event] = []

    @rank_zero_only
    def on_turn(self, federation: Federation, turn: Turn) -> None:
        """Keep the round's events until the round is over, so that no failed round has rows."""
        self._events = turn.events

    @rank_zero_only
    def on_round_end(
        self, federation: Federation, row: dict[str, Any], clients: dict[int, dict[str, Any]]
    ) -> None:
        """Write the round's events, in their order."""
        if not self._events:
            return
        if self._table is None:
            self._table = RoundTable(federation.run_dir / self.file_name, EVENT_COLUMNS)
        round_idx = int(row["round"])
        rows = [{"round": round_idx, **_cells(event)} for event in self._events]
        self._table.append(rows, round_idx=round_idx)
        self._events = []


def _cells(event: Event) -> dict[str, Any]:
    """The event's columns; what it does not have is empty, so that no average includes it."""
    return {
        "seconds": event.seconds,
        "kind": event.kind,
        "client_id": "" if event.kind == "step" else event.client,
        "version": event.version,
        "staleness": event.staleness if event.kind == "arrival" else "",
    }
