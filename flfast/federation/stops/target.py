"""End a run once a metric has reached a value."""

from collections.abc import Mapping, Sequence
from typing import Any

from flfast.federation.stops.stop import Stop, evaluated
from flfast.tasks.names import falls


def target(*, metric: str, value: float) -> Stop:
    """A rule that ends a run at the first evaluation that reaches a value."""

    def stop(rows: Sequence[Mapping[str, Any]]) -> str | None:
        found = evaluated(rows, metric)
        if not found:
            return None
        reached = found[-1] <= value if falls(metric) else found[-1] >= value
        return f"{metric}={found[-1]:.4g} has reached {value:.4g}" if reached else None

    return stop
