"""Checks that objects of a Python program can be sent to ranks that are spawned."""

import io
import pickle
import sys
from pathlib import Path
from typing import Any

from flfast.config.errors import ConfigError
from flfast.config.own import Own
from flfast.state.messages import first_line

_ALLOWED = (
    "allowed: functions and classes of a module of your own; trainer.devices=1; or threads=1, no "
    "CUDA and no other thread before the run, since ranks are then forked"
)


def check_spawnable(own: Own) -> None:
    """Refuse objects that another process cannot load.

    Raises:
        ConfigError: naming the object and the reason; also if the program itself is no file.
    """
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is not None and not Path(script).is_file():
        raise ConfigError(
            f"{script} is no file, and ranks that are spawned import the program; {_ALLOWED}"
        )
    for group, value in own.given().items():
        where = f"{group}={own.nodes[group]['_target_']}"
        search = _Search(b"__main__")
        try:
            pickle.Pickler(search).dump(value)
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise ConfigError(
                f"{where}: cannot be pickled for ranks that are spawned: {reason}; {_ALLOWED}"
            ) from error
        if search.found and script is None:
            raise ConfigError(
                f"{where}: is defined in a notebook or a console, which ranks that are spawned "
                f"cannot import; {_ALLOWED}"
            )


class _Search(io.RawIOBase):
    """A file that keeps nothing, and knows whether a word was written to it."""

    def __init__(self, word: bytes) -> None:
        super().__init__()
        self._word, self.found = word, False

    def write(self, data: Any) -> int:
        content = bytes(data)
        self.found = self.found or self._word in content
        return len(content)
