"""Writes `clients.csv`: one row per round and client."""

from typing import Any

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from flfast.federation.loop import Federation
from flfast.output.results.columns import CLIENT_COLUMNS, columns_of, is_metric
from flfast.output.results.table import RoundTable


class ClientsTable(Callback):
    """Writes status and metrics of each client; a resumed run continues the file.

    A last column, `client`, has their names if the data name them.
    """

    file_name = "clients.csv"

    def __init__(self, *, every_round: bool) -> None:
        super().__init__()
        self._every_round = every_round
        self._table: RoundTable | None = None

    @rank_zero_only
    def on_round_end(
        self, federation: Federation, row: dict[str, Any], clients: dict[int, dict[str, Any]]
    ) -> None:
        """Write the rows of the round's clients, sorted by id."""
        if self._table is None:
            columns = columns_of(CLIENT_COLUMNS, federation.data.examples.task)
            self._table = RoundTable(federation.run_dir / self.file_name, columns)
        round_idx = int(row["round"])
        names = federation.data.client_names
        named = {k: {"client": names[k]} if names else {} for k in sorted(clients)}
        rows = [{"round": round_idx, "client_id": k, **clients[k], **named[k]} for k in named]
        if self._every_round:
            self._table.append(rows, round_idx=round_idx)
        elif any(is_metric(column) for client in rows for column in client):
            self._table.replace(rows)
