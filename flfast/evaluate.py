"""The command `python -m flfast.evaluate run=FOLDER [key=value ...]`.

Evaluates the models of a finished run, or of a checkpoint, as its last round did or on other data.
"""

from collections.abc import Sequence

from flfast.config.explain import run_command
from flfast.config.own import NOTHING, Own
from flfast.config.saved_options import EVALUATE, read_options
from flfast.config.saved_run import find_run

USAGE = """\
python -m flfast.evaluate run=FOLDER [key=value ...]

  run=FOLDER             folder of a run; the models that it wrote at its end predict
  checkpoint=last|best|FOLDER   use the models of a checkpoint instead
  model=FILE             use a model of the server instead, .pt or .safetensors
  split=test|val|train|global   examples to predict (test: central, clients' own, held out)
  personal=true|false    clients' own models, or the server's (the server's, if it has one)
  predictions=csv|parquet   type of the file of predictions (csv)
  allow=NAME             trust a package, module or function that the run's config names, such as
                         allow=my_package; it may be given several times
  output=FOLDER          folder for the files (FOLDER/evaluation of the run)

Keys of the run's config that matter here override it, such as data.root=FOLDER,
finetune_epochs=5, loader.eval_batch_size=100 or data=mnist.
"""


def evaluate(words: Sequence[str], objects: Own = NOTHING) -> dict[str, float]:
    """Evaluate a saved run, print a table, and write files; returns the metrics by column.

    The words are those of the command line, and `objects` are objects of a program in
    place of what the config names.

    Raises:
        ConfigError: naming key, value and what is allowed.
    """
    options, overrides = read_options(words, EVALUATE)
    saved = find_run(options, overrides, objects)
    from flfast.commands.saved.evaluation_files import report  # imports torch

    return report(saved, options)


def main() -> None:
    """Run the command."""
    run_command("flfast.evaluate", USAGE, evaluate)


if __name__ == "__main__":
    main()
