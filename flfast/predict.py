"""The command `python -m flfast.predict run=FOLDER data.path=FILE [key=value ...]`.

Reads raw rows, whose targets nobody knows yet, and says what a model of a saved run predicts.
"""

from collections.abc import Sequence
from pathlib import Path

from flfast.config.explain import run_command
from flfast.config.own import NOTHING, Own
from flfast.config.saved_options import PREDICT, read_options
from flfast.config.saved_run import find_run

USAGE = """\
python -m flfast.predict run=FOLDER data.path=FILE [key=value ...]

  run=FOLDER             folder of a run; the server's model that it wrote at its end predicts
  data.path=FILE         raw rows, with the columns of training but for the targets
  key=COLUMN             column of the file that the predictions shall have, too, such as a name
  client=NUMBER          the client's own model predicts instead
  model=FILE             use a model of the server, .pt or .safetensors
  allow=NAME             trust a package, module or function that the run's config names, such as
                         allow=my_package; it may be given several times
  output=FILE            table of the predictions (FOLDER/predictions.csv of the run)

Rows are scaled and coded as in training: preprocessing.json of the run says how. Predictions are
classes by name and their probabilities, or numbers in the unit of the targets.
"""


def predict(words: Sequence[str], objects: Own = NOTHING) -> Path:
    """Predict raw rows with a model of a saved run; returns the table's file.

    The words are those of the command line, and `objects` are objects of a program in
    place of what the config names.

    Raises:
        ConfigError: naming key, value and what is allowed.
    """
    options, overrides = read_options(words, PREDICT)
    saved = find_run(options, overrides, objects)
    from flfast.commands.saved.predicted_rows import report  # imports torch

    return report(saved, options)


def main() -> None:
    """Run the command."""
    run_command("flfast.predict", USAGE, predict)


if __name__ == "__main__":
    main()
