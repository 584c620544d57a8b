"""What a source made of raw values: scales and codes of columns, names of classes, a vocabulary.

A run keeps it in `preprocessing.json`. What reads raw data for a trained model applies it, so that
a row means the same as in training, whichever other rows are beside it. Torch-free.
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flfast.state.messages import naming
from flfast.state.regular_file import read_file
from flfast.tasks.names import TaskName

FILE = "preprocessing.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ColumnScale(_Record):
    """A value x became (x - mean) / deviation."""

    mean: float
    deviation: float = Field(gt=0)


class TableColumns(_Record):
    """What became of the columns of a table, in the order of the inputs.

    Attributes:
        numeric: scale of each column of numbers; None: they are as stored.
        fills: what replaces missing numbers of a column, before they are scaled; empty: nothing.
        indicators: columns of numbers of which another input says whether one was missing, 1 or 0.
            These inputs are behind the numbers.
        clients: scales of a client's own rows, by its name and column; empty if all share one.
        categories: names that the codes 0, 1, ... of a column stand for; None is a missing value.
        targets: scale of each number to predict; None: it is as stored. Names of labels, too.
    """

    numeric: Mapping[str, ColumnScale | None] = {}
    fills: Mapping[str, float] = {}
    indicators: tuple[str, ...] = ()
    clients: Mapping[str, Mapping[str, ColumnScale]] = {}
    categories: Mapping[str, tuple[str | None, ...]] = {}
    targets: Mapping[str, ColumnScale | None] = {}

    @property
    def names(self) -> list[str]:
        """All columns that are read, in the order of the inputs."""
        return [*self.numeric, *self.categories]

    def may_lack(self, name: str) -> bool:
        """Whether a value of a column may be missing."""
        return name in self.fills or None in self.categories.get(name, ())


class Preprocessing(_Record):
    """From raw values to the inputs of a model, and from its outputs to names.

    Attributes:
        flfast: version that wrote the file.
        task: the learning task.
        input_shape: shape of an input, without the batch dimension.
        input_type: of inputs as a source stores them; uint8 is divided by 255 then.
        mean: subtracted from stored inputs, of all or of each channel; None: nothing is.
        deviation: by which they are divided then.
        columns: of a table; None: inputs are no table's.
        num_outputs: C: classes, numbers to predict, labels, or tokens.
        classes: name of each class; empty if unknown.
        vocabulary: text of each token; None: inputs are no tokens, or their text is unknown.
    """

    flfast: str
    task: TaskName
    input_shape: tuple[int, ...]
    input_type: str
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    columns: TableColumns | None = None
    num_outputs: int
    classes: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] | None = None

    def write(self, folder: Path) -> None:
        """Write the file into the folder of a run.

        Raises:
            OSError: if it cannot be written.
        """
        path = folder / FILE
        with naming(path):
            path.write_text(f"{self.model_dump_json(indent=1)}\n", encoding="utf-8")


def read_preprocessing(folder: Path) -> Preprocessing | None:
    """What a run kept; None of a run that wrote no such file.

    Raises:
        ValueError: if the file is damaged.
        OSError: if it cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        return Preprocessing.model_validate_json(read_file(path))
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ValueError(f"{path} is damaged: {where}: {problem['msg']}") from None
