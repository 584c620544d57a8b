"""Elements of SVG, scales and ticks. All text is escaped."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from flfast.output.results.charts import VIEW_COLOURS

WIDTH = 480
_NUM_COLOURS = 8


class Scale(NamedTuple):
    """A map from values to places.

    Attributes:
        low: value at `start`.
        high: value at `end`.
        start: place, in units of the picture.
        end: place.
        log: whether it is logarithmic; then `low` is above 0.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def ticks(self) -> list[float]:
        """Round values between the ends."""
        if not self.log or self.high < 10 * self.low:
            return ticks(self.low, self.high)
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        return [10.0**power for power in powers if self.low <= 10.0**power <= self.high]

    def __call__(self, value: float) -> float:
        """The place of a value; values beyond the ends are moved to them."""
        at, low, high = (math.log10(n) if self.log else n for n in (value, self.low, self.high))
        share = (at - low) / (high - low) if high > low else 0.5
        return round(self.start + min(1.0, max(0.0, share)) * (self.end - self.start), 2)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values from `low` to `high`, at most `most`, in equal steps of 1, 2 or 5 times 10^k.

    >>> ticks(0, 30), ticks(0.93, 0.97, 4)
    ([0.0, 10.0, 20.0, 30.0], [0.94, 0.96])
    """
    if not high > low:
        return [low]
    size = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (size * factor for factor in (1, 2, 5, 10, 20)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [float(f"{number * step:.12g}") for number in range(first, last + 1)]
    return [low, high]


def element(tag: str, *children: Markup | str, **attributes: object) -> Markup:
    """An element; `class_` is the attribute `class`, and `_` in a name stands for `-`."""
    words = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    # The tag and the names are this package's own; children and values are escaped.
    return Markup(f"<{tag}{words}>{''.join(escape(child) for child in children)}</{tag}>")


def picture(height: float, label: str, *children: Markup) -> Markup:
    """The chart: one stop of the Tab key, inside of which arrow keys move from mark to mark."""
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {WIDTH} {height:g}",
        class_="chart",
        role="group",
        tabindex=0,
        aria_roledescription="chart",
        aria_label=f"{label}. Arrow keys read its values; a table follows.",
    )


def mark(x: float, y: float, tip: str, *, look: str, series: int, radius: float) -> Markup:
    """A point with a text that is shown when it is pointed at or reached by arrow keys."""
    shown = {"class_": f"mark {look}", "data_tip": tip, "data_s": series}
    return element("circle", cx=x, cy=y, r=radius, **shown)


def outline(points: Sequence[tuple[float, float]], *, steps: bool = False) -> str:
    """The path through points; in steps, a value holds until the next one."""
    words = [f"M{x:g} {y:g}" if n == 0 else "" for n, (x, y) in enumerate(points)]
    for n, (x, y) in enumerate(points[1:], start=1):
        words[n] = f"H{x:g}V{y:g}" if steps else f"L{x:g} {y:g}"
    return "".join(words)


def colour(number: int, view: str = "") -> str:
    """The class that colours a series: that of its view, or else of its number."""
    return f"c{VIEW_COLOURS.index(view) if view else number % _NUM_COLOURS}"


def text(x: float, y: float, words: str, anchor: str = "start", **attributes: object) -> Markup:
    """Text at a place."""
    return element("text", words, x=x, y=y, text_anchor=anchor, **attributes)


def grid(
    scale: Scale, across: tuple[float, float], *, vertical: bool, form: Callable[[float], str]
) -> list[Markup]:
    """Lines at the ticks of an axis, and their values.

    Args:
        scale: scale of the axis.
        across: ends of the lines on the other axis; values stand beside the first one.
        vertical: whether the lines are vertical, for the x axis.
        form: a value as text.
    """
    found = []
    for value in scale.ticks():
        place = scale(value)
        if vertical:
            line = {"x1": place, "x2": place, "y1": across[0], "y2": across[1]}
            # A label in the middle of its line would be cut off at the edges of the picture.
            anchor = "end" if place > WIDTH - 18 else "start" if place < 14 else "middle"
            label = text(place, across[0] + 17, form(value), anchor)
        else:
            line = {"x1": across[0], "x2": across[1], "y1": place, "y2": place}
            label = text(across[0] - 6, place + 4, form(value), "end")
        found += [element("line", class_="grid", **line), label]
    return found
