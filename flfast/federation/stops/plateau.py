"""End a run once a metric has stopped to improve."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flfast.federation.stops.stop import Stop, evaluated
from flfast.state.options import Count, NonNegative
from flfast.tasks.names import falls


def plateau(*, metric: str, patience: Count, min_change: NonNegative) -> Stop:
    """A rule that ends a run after `patience` evaluations in a row without a new best."""

    def stop(rows: Sequence[Mapping[str, Any]]) -> str | None:
        sign = 1 if falls(metric) else -1
        best, waited = math.inf, 0
        for value in evaluated(rows, metric):
            improved = sign * value < best - min_change
            best, waited = (sign * value, 0) if improved else (best, waited + 1)
        if waited < patience:
            return None
        return f"{metric} has not improved on {sign * best:.4g} in {waited} evaluations"

    return stop
