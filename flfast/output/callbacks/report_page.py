"""Writes `report.html`: the run as a page that needs no network."""

import sys

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from flfast.federation.loop import Federation
from flfast.output.report.page import report_or_warn
from flfast.output.results.history import Row
from flfast.output.results.outcome import outcome_of
from flfast.output.results.runs import RunRecord, read_run


class ReportPage(Callback):
    """Writes the report at the end of the run; `python -m flfast.report` writes it again.

    It shows what the other callbacks left in the folder, such as `clients.csv`.
    """

    file_name = "report.html"

    @rank_zero_only
    def on_run_end(self, federation: Federation) -> None:
        """Write the page; if that fails, the log has a warning and the run is none the worse."""
        ended = outcome_of(sys.exc_info()[1])

        def runs() -> list[RunRecord]:
            # Without logger=csv there is no metrics.csv.
            history: list[Row] = [*federation.history]
            return [read_run(federation.run_dir)._replace(history=history, outcome=ended)]

        report_or_warn(runs, federation.run_dir / self.file_name)
