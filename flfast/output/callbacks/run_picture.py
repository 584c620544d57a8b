"""The frame of callbacks that draw a picture into the folder of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Callback

from flfast.output.callbacks.figures import figure
from flfast.state.messages import one_line
from flfast.state.options import Count, Formats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flfast.federation.loop import Federation


log = logging.getLogger(__name__)


def or_warn(hook: Callable[[Any, Federation], None]) -> Callable[[Any, Federation], None]:
    """A hook that writes `file_name`, whose failure is a warning: no number depends on the file.

    An `OSError`, such as that of a full disk, is raised, because other files need the disk, too.
    """

    @wraps(hook)
    def method(callback: Any, federation: Federation) -> None:
        try:
            hook(callback, federation)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - a plotting library or a user's model has many
            log.warning("%s was not written: %s", callback.file_name, one_line(error))

    return method


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
