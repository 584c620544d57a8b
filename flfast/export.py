"""The command `python -m flfast.export run=FOLDER format=torch|onnx [key=value ...]`.

Exports a model of a saved run, loads the file again, and compares its outputs.
"""

from collections.abc import Sequence
from pathlib import Path

from flfast.config.explain import run_command
from flfast.config.own import NOTHING, Own
from flfast.config.saved_options import EXPORT, read_options
from flfast.config.saved_run import find_run

USAGE = """\
python -m flfast.export run=FOLDER format=torch|onnx [key=value ...]

  run=FOLDER             folder of a run; the server's model that it wrote at its end is exported
  format=torch|onnx      a program of torch.export, or ONNX
  client=NUMBER          export the client's own model instead
  checkpoint=last|best|FOLDER   use the models of a checkpoint
  model=FILE             use a model of the server, .pt or .safetensors
  allow=NAME             trust a package, module or function that the run's config names, such as
                         allow=my_package; it may be given several times
  output=FILE            the file (FOLDER/model.pt2 or .onnx; of a client: personal/NUMBER.pt2, or
                         personal/NUMBER-NAME.pt2 if the data name their clients)

The program reads batches of any size of examples as they are stored, such as uint8 images, and
returns outputs of the task. Keys of the run's config override it, such as data.root=FOLDER.
"""


def export(words: Sequence[str], objects: Own = NOTHING) -> Path:
    """Export a model of a saved run, and print what was written; returns the file.

    The words are those of the command line, and `objects` are objects of a program in
    place of what the config names.

    Raises:
        ConfigError: naming key, value and what is allowed.
    """
    options, overrides = read_options(words, EXPORT)
    saved = find_run(options, overrides, objects)
    from flfast.commands.saved.exported_model import report  # imports torch

    return report(saved, options)


def main() -> None:
    """Run the command."""
    run_command("flfast.export", USAGE, export)


if __name__ == "__main__":
    main()
