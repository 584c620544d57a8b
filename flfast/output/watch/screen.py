"""Tables on the screen, alike for a run and for a sweep. Torch-free."""

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
    """A table without rows: headings of columns of text come first, then those of numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in words:
        table.add_column(Text(name))
    for name in numbers:
        table.add_column(Text(name), justify="right")
    return table
