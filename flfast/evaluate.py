"""The command `python -m flfast.evaluate run=FOLDER [key=value ...]`.

Evaluates the models of a finished run, or of a checkpoint, as its last round did or on other data.
"""

import importlib.util
import logging
import os
import sys

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from flfast.config.composition import CONF
from flfast.config.errors import ConfigError
from flfast.config.explain import explain
from flfast.config.saved_run import find_run, read_options

USAGE = """\
python -m flfast.evaluate run=FOLDER [key=value ...]

  run=FOLDER             folder of a run; the models that it wrote at its end predict
  checkpoint=last|best|FOLDER   use the models of a checkpoint instead
  model=FILE             use a model of the server instead, .pt or .safetensors
  split=test|val|train|global   examples to predict (test: central, clients' own, held out)
  personal=true|false    clients' own models, or the server's (the server's, if it has one)
  predictions=csv|parquet   type of the file of predictions (csv)
  output=FOLDER          folder for the files (FOLDER/evaluation of the run)

Keys of the run's config that matter here override it, such as data.root=FOLDER,
finetune_epochs=5, loader.eval_batch_size=100 or data=mnist.
"""
OPTIONS = {
    "run": None,
    "checkpoint": None,
    "model": None,
    "split": ("test", "val", "train", "global"),
    "personal": ("true", "false"),
    "predictions": ("csv", "parquet"),
    "output": None,
}
HINT = "All options: python -m flfast.evaluate --help."


def evaluate(words: list[str]) -> None:
    """Evaluate a saved run, print a table, and write files.

    Args:
        words: of the command line.

    Raises:
        ConfigError: naming key, value and what is allowed.
    """
    options, overrides = read_options(words, OPTIONS)
    if options.get("predictions") == "parquet" and not importlib.util.find_spec("pyarrow"):
        raise ConfigError("predictions=parquet needs pyarrow: pip install 'flfast[parquet]'")
    saved = find_run(options, overrides, conf=CONF)
    from flfast.saved.evaluation_report import report  # imports torch

    report(saved, options)


def main() -> None:
    """Run the command; exit code 2 for a wrong setting."""
    words = sys.argv[1:]
    if not words or {"--help", "-h"} & set(words):
        sys.stdout.write(USAGE)
        return
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        evaluate(words)
    except (ConfigError, HydraException, OmegaConfBaseException, OSError) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        sys.exit(explain(error, conf=CONF, hint=HINT))


if __name__ == "__main__":
    main()
