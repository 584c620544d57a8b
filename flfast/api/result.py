"""`Run`: what a finished run has left in its folder. Torch-free until a model is asked for."""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from flfast.api.arguments import Arguments
from flfast.config.errors import ConfigError, refused
from flfast.config.own import NOTHING, Own
from flfast.config.saved_config import read_config
from flfast.config.trust import named_by
from flfast.datamodules.preprocessing import read_preprocessing
from flfast.evaluate import evaluate
from flfast.export import export
from flfast.output.results.history import Row, parsed
from flfast.output.results.outcome import Outcome, outcome
from flfast.output.results.runs import read_choices
from flfast.output.results.table import read_clients, read_history
from flfast.state.real_folder import real_folder

if TYPE_CHECKING:
    from torch import nn

    from flfast.algorithms.contract.algorithm import Algorithm
    from flfast.api.picture import Picture


class Run:
    """A run, read from its folder: one of `flfast.run` or of the command line.

    Attributes:
        folder: folder of the run: absolute, without links.

    Args:
        folder: folder of the run.
        data: examples for `evaluate`, `export` and models that `model=` makes by a function; as
            of `flfast.run`. A run that had its own data needs them, and any other may have them.
        test_data: as of `flfast.run`.
        target: as of `flfast.run`.
        client: as of `flfast.run`.
        labels: as of `flfast.run`.
        model: as of `flfast.run`; the run's weights are loaded into a copy.
        algorithm: as of `flfast.run`.
        allow: packages, modules or functions that the run's config names and that may be called,
            by dotted path. Without it, flfast's own options are.

    Raises:
        ConfigError: if the folder holds no run.
    """

    def __init__(  # noqa: PLR0913 - one parameter an option
        self,
        folder: str | Path,
        *,
        data: Any = None,
        test_data: Any = None,
        target: str | None = None,
        client: Any = None,
        labels: Any = None,
        model: "nn.Module | Callable[..., nn.Module] | None" = None,
        algorithm: "Algorithm | Callable[..., Algorithm] | None" = None,
        allow: str | Sequence[str] = (),
    ) -> None:
        if not isinstance(folder, (str, os.PathLike)):
            raise ConfigError(f"flfast.Run({folder!r}): allowed: a path, the folder of a run")
        self.folder = real_folder(folder)
        if not (self.folder / ".hydra" / "config.yaml").exists():
            raise ConfigError(
                f"flfast.Run({str(folder)!r}): there is no .hydra/config.yaml; allowed: the "
                f"folder of a run"
            )
        self._given = Arguments(data, test_data, target, client, labels, model, algorithm)
        self._allow = [allow] if isinstance(allow, str) else list(allow)

    @classmethod
    def of(cls, folder: Path, objects: Own, config: DictConfig) -> "Run":
        """A run of this program, which trusts the names in its own config."""
        found = cls(folder, allow=named_by(config))
        found._objects = objects
        return found

    @cached_property
    def _objects(self) -> Own:
        if all(value is None for value in self._given):
            return NOTHING
        from flfast.api.own_objects import own_objects  # imports torch

        settings = [f"task={read_config(self.folder, self._allow).get('task')}"]
        with refused():
            kept = read_preprocessing(self.folder)
        return own_objects(self._given, settings, kept)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def outcome(self) -> Outcome:
        """`finished`, or what else has become of the run; read anew each time."""
        with refused():
            return outcome(self.folder)

    @cached_property
    def history(self) -> Any:
        """Rows of `metrics.csv`: row r is the state after round r.

        A pandas DataFrame where pandas is installed, otherwise a list of dicts, in which a value
        that was not measured is None.

        Raises:
            ConfigError: if the run wrote no `metrics.csv`, or it is damaged.
        """
        return _table(self._history())

    @cached_property
    def clients(self) -> Any:
        """Each client's row of the last evaluation, as `history`.

        Raises:
            ConfigError: if the run wrote no `clients.csv`, or it is damaged.
        """
        with refused():
            return _table(read_clients(self._file("clients.csv", "callbacks=none")))

    @cached_property
    def model(self) -> "nn.Module":
        """The model with the server's final weights, on the CPU, in evaluation mode.

        Raises:
            ConfigError: if the run saved no complete model of the server, or had objects of a
                program that are not here, or names what is not allowed.
        """
        from flfast.api.trained import trained_model  # imports torch

        config = read_config(self.folder, self._allow)
        self._objects.put_into(config)
        return trained_model(self.folder, config, self._objects)

    def evaluate(self, *words: str) -> dict[str, float]:
        """Evaluate the run's models as `python -m flfast.evaluate` does, and write its files.

        Args:
            words: as on the command line, such as `"split=val"`, `"checkpoint=best"`.

        Returns:
            The metrics by column, such as `global/accuracy`.

        Raises:
            ConfigError: with the command's message, if something cannot be evaluated.
        """
        return evaluate([*self._words(), *words], self._objects)

    def predict(self, data: Any = None, *words: str, key: str | None = None) -> Any:
        """What the run's model says of raw examples, whose targets nobody has to know.

        Args:
            data: a DataFrame with the columns of training but for the target and clients, or
                inputs [N, ...] as those of training; or the first of the words, as
                `"data.path=FILE"`, whose file is read.
            words: as of `python -m flfast.predict`, such as `"client=3"`.
            key: column to carry along, such as a name.

        Returns:
            A row for each example, as `history`: its number in `row`, the class and
            probabilities, or numbers in the unit of the targets.

        Raises:
            ConfigError: if the run has no such model, or the examples are not as in training.
        """
        from flfast.api.predicting import predicted  # imports torch

        if isinstance(data, str):
            words, data = (data, *words), None
        given = [*self._words(), *words, *([] if key is None else [f"key={key}"])]
        return _table_of(predicted(data, given, self._objects))

    def export(self, *words: str) -> Path:
        """Export a model of the run as `python -m flfast.export` does.

        Args:
            words: as on the command line, such as `"format=onnx"`, `"client=3"`.

        Returns:
            The file.

        Raises:
            ConfigError: with the command's message, if the model cannot be exported.
        """
        return export([*self._words(), *words], self._objects)

    def _words(self) -> list[str]:
        return [f"run={self.folder}", *(f"allow={name}" for name in self._allow)]

    def plot(self) -> "Picture":
        """Accuracy and loss over rounds: a matplotlib figure, which notebooks show.

        Raises:
            ConfigError: if the run measured no loss, or a file is damaged.
        """
        from flfast.api.picture import draw  # imports matplotlib

        with refused():
            choices = read_choices(self.folder)
        names = ("algorithm", "data", "partition", "model")
        title = " · ".join(choices.get(name, "") for name in names)
        return draw(self._history(), title=title)

    def _history(self) -> list[Row]:
        with refused():
            return read_history(self._file("metrics.csv", "logger=none"))

    def _file(self, name: str, without: str) -> Path:
        path = self.folder / name
        if not path.exists():
            raise ConfigError(f"there is no {path}: {without} writes none")
        return path


def _table_of(columns: dict[str, Any]) -> Any:
    if find_spec("pandas") is None:
        names, rows = columns.keys(), zip(*(c.tolist() for c in columns.values()), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]
    import pandas as pd

    return pd.DataFrame(columns)


def _table(rows: list[Row]) -> Any:
    values = [{name: parsed(cell) for name, cell in row.items()} for row in rows]
    if find_spec("pandas") is None:
        return values
    import pandas as pd

    return pd.DataFrame(values).fillna(float("nan")).infer_objects()
