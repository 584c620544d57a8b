"""The weighted mean of uploads, as in FedAvg; nothing is collected, and nothing is resisted."""

from flfast.aggregations.aggregation import MEAN, Aggregation


def mean() -> Aggregation:
    """The weighted mean, which one upload can move anywhere."""
    return MEAN
