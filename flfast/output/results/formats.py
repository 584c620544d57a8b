"""Numbers and durations as a reader sees them. Torch-free."""

import math
import re
from collections.abc import Callable, Iterable

from rich.filesize import decimal

from flfast.output.results.columns import is_metric
from flfast.output.results.statistics import Interval

_LONGER = ((86_400.0, "days"), (3600.0, "h"), (60.0, "min"))


def unit(seconds: float) -> tuple[float, str]:
    """Seconds and name of the largest unit in which the duration is at least 2; seconds if none.

    >>> unit(90), unit(7200)
    ((1.0, 's'), (3600.0, 'h'))
    """
    return next(((size, name) for size, name in _LONGER if seconds >= 2 * size), (1.0, "s"))


def readable(seconds: float, std: float = math.nan) -> str:
    """The duration with three digits, its standard deviation where there is one, and its unit.

    >>> readable(0.5), readable(5000), readable(5000, 60), readable(1e9), readable(math.nan)
    ('0.5 s', '83.3 min', '83.3 ± 1 min', '11,574 days', '-')
    """
    if not math.isfinite(seconds):
        return "-"
    size, name = unit(seconds)
    deviation = f" ± {_digits(std / size)}" if math.isfinite(std) else ""
    return f"{_digits(seconds / size)}{deviation} {name}"


def _digits(number: float) -> str:
    return f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"


def in_percent(column: str, values: Iterable[float] = ()) -> bool:
    """Whether values of a column, or of an axis, are shares that are shown in percent.

    A user's own accuracy may be a percentage itself.

    >>> in_percent("val/accuracy", [0.5, 1.0]), in_percent("val/accuracy", [0.5, 93.0])
    (True, False)
    """
    return ("accuracy" in column or "share" in column) and not any(abs(v) > 1 for v in values)


def value(column: str, number: float, std: float = math.nan) -> str:
    """A value of a column, and its standard deviation where there is one.

    Percent for accuracies, units for times and bytes, four digits else.

    >>> value("global/accuracy", 0.98765), value("train/loss", 0.12345), value("x", math.nan)
    ('98.77 %', '0.1235', '-')
    >>> value("val/loss", 0.5, 0.25), value("val/accuracy", 0.5, 0.01), value("comm/up_bytes", 4e6)
    ('0.5 ± 0.25', '50.00 ± 1.00 %', '4.0 MB')
    """
    form = None if is_metric(column) else _FORMS.get(re.split("[/_]", column)[-1])
    if not math.isfinite(number):
        return "-"
    if form:
        return form(number)
    percents = in_percent(column, [number])
    known = [(number, ".4g")] + [(std, ".2g")] * math.isfinite(std)
    words = (f"{100 * n:.2f}" if percents else f"{n:{digits}}" for n, digits in known)
    return " ± ".join(words) + " %" * percents


def interval(column: str, estimate: Interval) -> str:
    """A mean and its interval; without one where there are too few seeds, or all are equal.

    >>> interval("global/accuracy", Interval(0.5, 0.25, 0.75, 3))
    '50.00 % [25.00, 75.00]'
    """
    mean = value(column, estimate.mean)
    if not math.isfinite(estimate.low) or estimate.low == estimate.high:
        return mean
    ends = (value(column, end).removesuffix(" %") for end in (estimate.low, estimate.high))
    return f"{mean} [{', '.join(ends)}]"


def difference(estimate: Interval, *, percent: bool) -> str:
    """A difference of two means and its interval; of what is in percent in points.

    >>> difference(Interval(0.0125, -0.01, 0.035, 3), percent=True)
    '1.25 points [-1.00, 3.50]'
    """
    if not percent:
        return interval("", estimate)
    if not math.isfinite(estimate.mean):
        return "-"
    ends = ""
    if math.isfinite(estimate.low):
        ends = f" [{100 * estimate.low:.2f}, {100 * estimate.high:.2f}]"
    return f"{100 * estimate.mean:.2f} points{ends}"


def p_value(p: float) -> str:
    """A p-value with its relation.

    >>> p_value(0.0001), p_value(0.0312), p_value(math.nan)
    ('< 0.001', '0.031', '-')
    """
    if math.isnan(p):
        return "-"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def count(number: float) -> str:
    """A number of things, with separators of thousands.

    >>> count(12345.0), count(2.5)
    ('12,345', '2.5')
    """
    if not math.isfinite(number):
        return "-"
    return f"{number:,.0f}" if number == round(number) or number >= 1000 else f"{number:.3g}"


def axis(number: float) -> str:
    """A tick's value in few characters.

    >>> axis(1500000.0), axis(0.5), axis(0.0)
    ('1.5M', '0.5', '0')
    """
    for prefix, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(number) >= size:
            return f"{number / (1e3 if prefix == 'k' else size):g}{prefix}"
    return f"{number:g}"


def tick(name: str, number: float, values: Iterable[float] = ()) -> str:
    """A value at an axis of this name, which has these values.

    >>> tick("share of clients", 0.975), tick("round", 20), tick("accuracy", 50, [48.5, 70])
    ('97.5 %', '20', '50')
    """
    return f"{100 * number:g} %" if in_percent(name, values) else axis(number)


_FORMS: dict[str, Callable[[float], str]] = {
    "bytes": lambda number: decimal(round(number)),
    **dict.fromkeys(("s", "seconds"), readable),
    **dict.fromkeys(("rounds", "clients", "rejected", "dropped", "idle", "flight"), count),
    "percent": lambda number: f"{number:.0f} %",
}
"""Last word of a column -> a number of it as text."""
