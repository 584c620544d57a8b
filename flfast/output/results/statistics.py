"""Intervals over seeds, paired tests between settings, and Holm's correction. Torch-free.

SciPy is imported when it is used: its import takes longer than the rest of a report.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
FEWEST_SEEDS = 3
FEWEST_FOR_BOOTSTRAP = 20
_RESAMPLES = 9999


class Interval(NamedTuple):
    """A mean over seeds and its 95 % interval.

    Attributes:
        mean: mean of the values; NaN if there is none.
        low: lower end; NaN if there are fewer than `FEWEST_SEEDS` values.
        high: upper end, likewise.
        num: number of values.
        std: their sample standard deviation; NaN if there are fewer than two.
    """

    mean: float
    low: float
    high: float
    num: int
    std: float = math.nan

    def __neg__(self) -> "Interval":
        """The interval of the values with the other sign."""
        return self._replace(mean=-self.mean, low=-self.high, high=-self.low)


class Comparison(NamedTuple):
    """A paired test between two settings over the seeds that both have.

    Attributes:
        higher: label of the setting with the larger mean over these seeds.
        lower: label of the other setting.
        difference: higher minus lower, and its interval.
        p: two-sided p-value of the paired t-test; NaN if there are too few seeds, or if all
            differences are equal.
        adjusted: `p` after Holm's correction over all comparisons; NaN likewise.
    """

    higher: str
    lower: str
    difference: Interval
    p: float
    adjusted: float

    @property
    def certain(self) -> bool:
        """Whether the difference is significant at 5 % after the correction."""
        return self.adjusted < 1 - CONFIDENCE


def mean_interval(values: Sequence[float], bounds: tuple[float, float] | None = None) -> Interval:
    """Mean of the finite values and its interval.

    Student's t interval, and from `FEWEST_FOR_BOOTSTRAP` values on the BCa bootstrap, always with
    the same resamples.

    Args:
        values: one per seed; those that are not finite are left out.
        bounds: least and largest possible mean, to which the interval is cut.
    """
    finite = np.array([value for value in values if math.isfinite(value)])
    num = len(finite)
    mean = float(finite.mean()) if num else math.nan
    std = float(finite.std(ddof=1)) if num > 1 else math.nan
    if num < FEWEST_SEEDS:
        return Interval(mean, math.nan, math.nan, num, std)
    if np.ptp(finite) == 0:
        return Interval(mean, mean, mean, num, 0.0)
    low, high = _bootstrap(finite) if num >= FEWEST_FOR_BOOTSTRAP else _student(finite)
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Interval(mean, low, high, num, std)


def _student(values: np.ndarray) -> tuple[float, float]:
    from scipy.special import stdtrit  # a tenth of the import of scipy.stats

    margin = stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2) * values.std(ddof=1)
    margin /= math.sqrt(len(values))
    return float(values.mean() - margin), float(values.mean() + margin)


def _bootstrap(values: np.ndarray) -> tuple[float, float]:
    from scipy.stats import bootstrap

    found = bootstrap(
        (values,),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="BCa",
        random_state=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def paired_test(values: Mapping[str, float], other: Mapping[str, float]) -> tuple[Interval, float]:
    """Difference values - other by seed, and the p-value of the paired t-test.

    Only seeds count that both have.
    """
    pairs = [(value, other[seed]) for seed, value in values.items() if seed in other]
    pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
    differences = [a - b for a, b in pairs]
    interval = mean_interval(differences)
    # Equal differences have no spread to compare with, only rounding errors.
    scale = max((abs(value) for pair in pairs for value in pair), default=0.0)
    if len(pairs) < FEWEST_SEEDS or statistics.pstdev(differences) <= 1e-12 * scale:
        return interval, math.nan
    from scipy.stats import ttest_rel

    return interval, float(ttest_rel(*zip(*pairs, strict=True)).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given; NaNs are left out of the correction.

    Holm: A simple sequentially rejective multiple test procedure. Scand. J. Statistics 6, 1979.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.005])]
    [0.03, 0.06, 0.06, 0.02]
    """
    given = np.array(p_values, dtype=np.float64)
    order = given.argsort(kind="stable")[: np.count_nonzero(~np.isnan(given))]  # NaNs come last
    adjusted = np.full(len(given), np.nan)
    times = np.arange(len(order), 0, -1)
    adjusted[order] = np.maximum.accumulate(np.minimum(times * given[order], 1.0))
    return adjusted.tolist()


def compare_all(values: Mapping[str, Mapping[str, float]]) -> list[Comparison]:
    """Paired tests between all pairs of settings, corrected together; smallest p first.

    The values are by seed, by label of the setting.
    """
    found: list[tuple[str, str, Interval, float]] = []
    for first, second in itertools.combinations(values, 2):
        interval, p = paired_test(values[first], values[second])
        names = (first, second)
        if interval.mean < 0:
            names = (second, first)
            interval = -interval
        found.append((*names, interval, p))
    adjusted = holm([p for *_, p in found])
    comparisons = [Comparison(*row, p) for row, p in zip(found, adjusted, strict=True)]
    return sorted(comparisons, key=lambda c: (math.isnan(c.adjusted), c.adjusted, c.p))
