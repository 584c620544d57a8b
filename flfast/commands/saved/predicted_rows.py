"""Writes what a model of a saved run says of raw examples."""

from collections.abc import Mapping
from pathlib import Path

from rich.text import Text

from flfast.config.saved_run import SavedRun
from flfast.output.results.table import write_csv
from flfast.output.watch.view import screen
from flfast.setup.raw_predictions import predict
from flfast.state.regular_file import make_folder, replacing


def report(saved: SavedRun, options: Mapping[str, str]) -> Path:
    """Predict the examples of `data.path`, write a table, and return its file.

    Of the options it reads `key`, `client`, and `output`.

    Raises:
        ConfigError: if the run has no such model, or the examples are not like those of training.
        OSError: if the file cannot be written.
    """
    client = options.get("client")
    columns = predict(saved, None, key=options.get("key"), client=client)
    path = Path(options.get("output", saved.folder / "predictions.csv"))
    make_folder(path.parent, named=True)
    cells = [
        map("{:.6g}".format, column.tolist()) if column.dtype.kind == "f" else column.tolist()
        for column in columns.values()
    ]
    with replacing(path.parent) as place:
        write_csv(place / path.name, columns, zip(*cells, strict=True))
    num = len(next(iter(columns.values())))
    console = screen(plain_width=100)
    console.print(Text(f"{num} predictions"), soft_wrap=True)
    console.print(Text(str(path), style="bold"), soft_wrap=True)
    return path
