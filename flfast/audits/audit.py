"""The contract: an audit attacks the server's final model, and says how well that worked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from flfast.state.capabilities import NEUTRAL, Capabilities, needing

if TYPE_CHECKING:
    from flfast.federation.loop import Federation


OF_MODELS = needing("server model")
OF_UPLOAD = needing("messages", "single uploads", "one call")


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
