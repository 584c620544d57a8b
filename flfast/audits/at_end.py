"""Runs the audit of a run after its last round, and writes its files."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_only

from flfast.audits.audit import Audit
from flfast.output.results.table import RoundTable
from flfast.state.messages import naming

if TYPE_CHECKING:
    from flfast.federation.loop import Federation

log = logging.getLogger(__name__)


class AuditAtEnd:
    """The hooks of an audit. It runs last, when all other files of the run are written."""

    table, picture = "audit.csv", "audit.png"

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    @rank_zero_only
    def on_run_start(self, federation: Federation) -> None:
        """Remove the files of an earlier end, which may be of another model."""
        for name in (self.table, self.picture):
            (federation.run_dir / name).unlink(missing_ok=True)

    def on_run_complete(self, federation: Federation) -> None:
        """Attack the final model, write the files and log what was found; collective."""
        if self._audit.measure is None:
            return
        found = self._audit.measure(federation)
        if found is None:
            return
        folder = federation.run_dir
        with naming(folder):
            RoundTable(folder / self.table, list(found.rows[0])).replace(found.rows)
        found.draw(folder / self.picture)
        log.info("audit=%s: %s", self._audit.name, found.sentence)
