"""The frame of callbacks that draw a picture into the folder of a run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from lightning.pytorch.callbacks import Callback

from flfast.output.callbacks.figures import figure
from flfast.state.options import Count, Formats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flfast.federation.loop import Federation


class RunPicture(Callback):
    """Draws `file_name`, a picture of the run, in each of the `formats`, `dpi` pixels an inch."""

    file_name: str

    def __init__(self, *, dpi: Count, formats: Formats) -> None:
        super().__init__()
        self._dpi, self._formats = dpi, formats

    def picture(
        self, federation: Federation, *, size: tuple[float, float], title: str = ""
    ) -> AbstractContextManager[Figure]:
        """Context with an empty figure of `size` inches; without a title it has the run's."""
        path, title = federation.run_dir / self.file_name, title or federation.title
        return figure(path, size=size, dpi=self._dpi, title=title, formats=self._formats)
