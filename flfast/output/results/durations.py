"""Durations in a unit that people can read. Torch-free."""

import math
from typing import NamedTuple


class Unit(NamedTuple):
    """A unit of time.

    Attributes:
        seconds: that it has.
        name: its abbreviation.
    """

    seconds: float
    name: str


_SECOND = Unit(1.0, "s")
_LONGER = (Unit(86_400.0, "days"), Unit(3600.0, "h"), Unit(60.0, "min"))


def unit(seconds: float) -> Unit:
    """The largest unit in which the duration is at least 2; seconds if none.

    >>> unit(90).name, unit(7200).name
    ('s', 'h')
    """
    return next((longer for longer in _LONGER if seconds >= 2 * longer.seconds), _SECOND)


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
