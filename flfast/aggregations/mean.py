"""The weighted mean of uploads, as in FedAvg: a running sum, not robust."""

from flfast.aggregations.aggregation import MEAN, Aggregation


def mean() -> Aggregation:
    """The weighted mean; a single attacker can move it anywhere."""
    return MEAN
