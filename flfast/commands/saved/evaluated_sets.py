"""Evaluates a saved run: predictions and metrics of every example of the chosen sets."""

from flfast.commands.saved.opened_run import OpenedRun, refused
from flfast.config.errors import ConfigError
from flfast.engines.evaluation.measured_set import MeasuredSet

SPLITS: dict[str, dict[bool, tuple[str, ...]]] = {
    "test": {False: ("global", "local", "new"), True: ("personal",)},
    "val": {False: ("val",), True: ("personal_val",)},
    "train": {False: ("train",), True: ("personal_train",)},
    "global": {False: ("global",), True: ()},
}
"""Names of evaluation sets by split, and by whether clients' own models predict."""

_FINETUNED = ("finetuned", "new_finetuned")


def evaluate(run: OpenedRun, split: str) -> list[MeasuredSet]:
    """Predict all examples of a split; with `finetune_epochs`, `test` also has fine-tuned models.

    Raises:
        ConfigError: if there are no such examples.
    """
    names = SPLITS[split][run.personal]
    if not names:
        raise ConfigError(f"split={split} with personal=true: allowed: test, val or train")
    passes = [names]
    if split == "test" and run.saved.config.finetune_epochs:
        passes.append(_FINETUNED)
    found = refused(lambda: run.engine.measure(run.server, run.plan, passes))
    if not found:
        raise ConfigError(f"split={split}: there are no such examples; see split.val, split.test")
    return found
