"""The logger of `metrics.csv`: one row per round, the same columns in every run."""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from flfast.output.results.columns import COLUMNS, columns_of
from flfast.output.results.table import RoundTable


class RoundCSVLogger(Logger):
    """Appends a row to `metrics.csv` in the run folder after every round.

    Columns that were not measured in a round are empty. A resumed run continues the file.
    """

    accepts_text = True

    def __init__(self, *, save_dir: str) -> None:
        super().__init__()
        self._save_dir = save_dir
        self.log_hyperparams({"task": "auto"})

    @property
    def name(self) -> str:
        """Empty: the run folder is the logger's folder."""
        return ""

    @property
    def version(self) -> str:
        """Empty, like `name`."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return self._save_dir

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append one row.

        Args:
            metrics: column -> number or str.
            step: the round; may be None if `metrics` has the column `round`.

        Raises:
            ValueError: if neither gives the round.
        """
        round_idx = metrics.get("round", step)
        if round_idx is None:
            raise ValueError(
                "step=None: metrics.csv needs the round; pass step or a column `round`"
            )
        self._table.append([{**metrics, "round": round_idx}], round_idx=int(round_idx))

    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Begin a table with the columns of the task; Hydra has already written the config."""
        task = params.get("task", "auto") if isinstance(params, dict) else "auto"
        self._table = RoundTable(Path(self._save_dir) / "metrics.csv", columns_of(COLUMNS, task))
