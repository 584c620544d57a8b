"""The contract: an audit attacks the final model after the last round, and writes two files."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from lightning.pytorch.utilities import rank_zero_only

from flfast.federation.loop import Federation
from flfast.output.results.table import RoundTable
from flfast.state.capabilities import NEUTRAL, Capabilities, needing
from flfast.state.messages import naming

log = logging.getLogger(__name__)

OF_MODELS = needing("server model", "single losses")
OF_UPLOAD = needing("messages", "single uploads", "equal uploads", "one call")


class Leak(NamedTuple):
    """The result of an audit.

    Attributes:
        rows: rows of `audit.csv`.
        sentence: summary for the log.
        draw: path -> None; writes `audit.png`.
    """

    rows: list[dict[str, Any]]
    sentence: str
    draw: Callable[[Path], None]


@dataclass(frozen=True)
class Audit:
    """An attack on a finished run.

    Attributes:
        name: value of the option, such as `membership`.
        check: before round 1; raises a ValueError, with the reason, for runs that the audit
            cannot attack.
        measure: after the last round, on every rank; collective. It changes nothing of the run.
            Other ranks than 0 return None. None is no audit.
        capabilities: what it needs and breaks.
    """

    name: str
    check: Callable[[Federation], None] = lambda federation: None
    measure: Callable[[Federation], Leak | None] | None = None
    capabilities: Capabilities = NEUTRAL


ModelAudit = Annotated[Audit, OF_MODELS]
UploadAudit = Annotated[Audit, OF_UPLOAD]


NO_AUDIT = Audit("none")


def none() -> Audit:
    """Nothing is attacked."""
    return NO_AUDIT


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
