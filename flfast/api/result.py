"""`Run`: what a finished run has left in its folder. Torch-free until a model is asked for."""

import os
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from flfast.config.errors import ConfigError
from flfast.config.own import NOTHING, Own
from flfast.results.columns import CLIENT_EVALUATION
from flfast.results.table import read_rows

if TYPE_CHECKING:
    from torch import nn

    from flfast.api.picture import Picture


class Run:
    """A run, read from its folder: one of `flfast.run` or of the command line.

    Attributes:
        folder: of the run, absolute.

    Args:
        folder: of the run.
        own: objects that the run had in place of what the config names.

    Raises:
        ConfigError: if the folder holds no run.
    """

    def __init__(self, folder: str | Path, own: Own = NOTHING) -> None:
        if not isinstance(folder, (str, os.PathLike)):
            raise ConfigError(f"flfast.Run({folder!r}): allowed: a path, the folder of a run")
        self.folder = Path(folder).absolute()
        if not (self.folder / ".hydra" / "config.yaml").is_file():
            raise ConfigError(
                f"flfast.Run({str(folder)!r}): there is no .hydra/config.yaml; allowed: the "
                f"folder of a run"
            )
        self._own = own

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @cached_property
    def history(self) -> Any:
        """Rows of `metrics.csv`: row r is the state after round r.

        A pandas DataFrame where pandas is installed, otherwise a list of dicts, in which a value
        that was not measured is None.

        Raises:
            ConfigError: if the run wrote no `metrics.csv`.
        """
        return _table(self._rows("metrics.csv", "logger=none writes none"))

    @cached_property
    def clients(self) -> Any:
        """Each client's row of the last evaluation, as `history`.

        Raises:
            ConfigError: if the run wrote no `clients.csv`.
        """
        rows = self._rows("clients.csv", "callbacks=none writes none")
        evaluated = [row for row in rows if any(row.get(name) for name in CLIENT_EVALUATION)]
        last = max((int(row["round"]) for row in evaluated), default=-1)
        return _table([row for row in evaluated if int(row["round"]) == last])

    @cached_property
    def model(self) -> "nn.Module":
        """The model with the server's final weights, on the CPU, in evaluation mode.

        Raises:
            ConfigError: if the run saved no complete model of the server.
        """
        from flfast.api.trained import trained_model  # imports torch

        return trained_model(self.folder, self._own)

    def plot(self) -> "Picture":
        """Accuracy and loss over rounds: a matplotlib figure, which notebooks show.

        Raises:
            ConfigError: if the run measured no loss.
        """
        from flfast.api.picture import draw  # imports matplotlib

        hydra: Any = OmegaConf.load(self.folder / ".hydra" / "hydra.yaml")
        choices = hydra.hydra.runtime.choices
        title = " · ".join(choices[name] for name in ("algorithm", "data", "partition", "model"))
        return draw(self._rows("metrics.csv", "logger=none writes none"), title=title)

    def _rows(self, name: str, reason: str) -> list[dict[str, str]]:
        path = self.folder / name
        if not path.exists():
            raise ConfigError(f"there is no {path}: {reason}")
        return read_rows(path)


def _table(rows: list[dict[str, str]]) -> Any:
    values = [{name: _value(cell) for name, cell in row.items()} for row in rows]
    if find_spec("pandas") is None:
        return values
    import pandas as pd

    return pd.DataFrame(values).fillna(float("nan")).infer_objects()


def _value(cell: str | None) -> int | float | str | None:
    if not cell:
        return None
    try:
        return float(cell) if {".", "e", "n"} & set(cell) else int(cell)
    except ValueError:
        return cell
