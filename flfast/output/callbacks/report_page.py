"""Writes `report.html`: the run as a page that needs no network."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from flfast.output.report.page import write_report
from flfast.output.results.history import Row
from flfast.output.results.outcome import outcome_of
from flfast.output.results.runs import read_run

if TYPE_CHECKING:
    from flfast.federation.loop import Federation

log = logging.getLogger(__name__)


class ReportPage(Callback):
    """Writes the report at the end of the run; `python -m flfast.report` writes it again.

    It shows what the other callbacks left in the folder, such as `clients.csv`.
    """

    file_name = "report.html"

    @rank_zero_only
    def on_run_end(self, federation: Federation) -> None:
        """Write the page; if that fails, the log has a warning and the run is none the worse."""
        path = federation.run_dir / self.file_name
        try:
            run = read_run(federation.run_dir)
            # Without logger=csv there is no metrics.csv.
            history: list[Row] = [*federation.history]
            ended = outcome_of(sys.exc_info()[1])
            write_report([run._replace(history=history, outcome=ended)], path)
        except Exception as error:  # noqa: BLE001 - a page must not cost a trained model
            log.warning("%s was not written: %s: %s", path, type(error).__name__, error)
