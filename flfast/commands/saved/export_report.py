"""Exports a model of a saved run, and says what the program reads."""

from collections.abc import Mapping
from pathlib import Path

from rich.text import Text

from flfast.commands.saved.exported_model import export
from flfast.commands.saved.opened_run import OpenedRun, open_run, refused
from flfast.config.saved_run import SavedRun
from flfast.output.watch.screen import screen
from flfast.state.regular_file import make_folder

_ENDINGS = {"torch": ".pt2", "onnx": ".onnx"}


def report(saved: SavedRun, options: Mapping[str, str]) -> Path:
    """Export a model and print its description.

    Args:
        saved: the run.
        options: reads `format`, `client` and `output`.

    Returns:
        The file.

    Raises:
        ConfigError: if the run has no such model, or the program does not agree with it.
        OSError: if the file cannot be written.
    """
    client_id = int(options["client"]) if "client" in options else None
    run = open_run(saved, personal=client_id is not None)
    name = "model" if client_id is None else f"personal/{_file_of(run, client_id)}"
    default = saved.folder / f"{name}{_ENDINGS[options['format']]}"
    path = Path(options.get("output", default))
    # The run's folder itself is named by the user, and `personal` in it is not.
    make_folder(path.parent, named="output" in options or client_id is None)
    try:
        found = export(run, options["format"], path, client_id)
    finally:
        refused(run.engine.close)
    console = screen(plain_width=100)
    for key, value in found.about.items():
        console.print(Text(f"{key}: {value}"), soft_wrap=True)
    difference = f"{found.difference:.1e} on {found.num_compared} examples"
    console.print(Text(f"largest difference of an output: {difference}"), soft_wrap=True)
    console.print(Text(str(path), style="bold"), soft_wrap=True)
    return path


def _file_of(run: OpenedRun, client_id: int) -> str:
    known = client_id < run.data.num_clients  # an unknown one is refused later, with a message
    return run.data.client_file(client_id) if known else str(client_id)
