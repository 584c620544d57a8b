"""Tables on the screen, alike for a run and for a sweep. Torch-free."""

import math
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def screen(*, plain_width: int) -> Console:
    """The terminal or notebook; where there is none, plain text of `plain_width` characters."""
    console = Console()
    shows = console.is_terminal or console.is_jupyter
    return console if shows else Console(width=plain_width)


def empty_table(
    words: Iterable[str], numbers: Iterable[str], *, title: str | None = None
) -> Table:
    """A table without rows.

    Args:
        words: headings of the columns of text, which come first.
        numbers: headings of the columns of numbers.
        title: the line above it.
    """
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in words:
        table.add_column(Text(name))
    for name in numbers:
        table.add_column(Text(name), justify="right")
    return table


def cell(metric: str, mean: float, std: float = math.nan) -> str:
    """A metric's value, and its standard deviation where there is one; accuracies in percent.

    >>> cell("val/accuracy", 0.5), cell("val/loss", 0.5, 0.25), cell("val/loss", math.nan)
    ('50.00 %', '0.5000 ± 0.2500', '-')
    """
    if not math.isfinite(mean):
        return "-"
    percent = metric.endswith("accuracy")
    scale, digits = (100, 2) if percent else (1, 4)
    deviation = f" ± {scale * std:.{digits}f}" if math.isfinite(std) else ""
    return f"{scale * mean:.{digits}f}{deviation}{' %' if percent else ''}"
