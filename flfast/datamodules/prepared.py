"""What a source made of raw values, read from its examples, and compared with that of training."""

import logging
from dataclasses import replace

from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.datamodules.preprocessing import FILE, Preprocessing
from flfast.state.version import __version__

log = logging.getLogger(__name__)


def preprocessing_of(examples: Examples) -> Preprocessing:
    """What was made of raw values, for those who predict with a model of these examples."""
    stored = examples.inputs if isinstance(examples.inputs, Tensor) else None
    if stored is None and examples.task != "module":
        stored = examples.inputs[0]
    return Preprocessing(
        flfast=__version__,
        task=examples.task,
        input_shape=examples.input_shape,
        input_type="module" if stored is None else str(stored.dtype).removeprefix("torch."),
        mean=examples.transform.mean,
        deviation=examples.transform.std,
        columns=examples.columns,
        num_outputs=examples.num_classes,
        classes=examples.class_names,
        vocabulary=examples.vocabulary,
    )


def prepared_as(kept: Preprocessing | None, examples: Examples) -> Examples:
    """Examples that become inputs as those of a saved run did; None changes nothing.

    Raises:
        ValueError: if numbers stand for other classes, tokens or categories than in that run.
    """
    if kept is None or kept.task == "module":
        return examples
    read, transform = preprocessing_of(examples), examples.transform
    pairs = {
        "classes": (kept.classes, read.classes),
        "tokens": (kept.vocabulary, read.vocabulary),
        "columns": (kept.columns, read.columns),
    }
    for what, (before, now) in pairs.items():
        if before and now and before != now:
            raise ValueError(
                f"the numbers of {what} stand for something else than in training, as "
                f"{FILE} says; allowed: data with the same {what}"
            )
    if (transform.mean, transform.std) == (kept.mean, kept.deviation):
        return examples
    given = transform.mean, transform.std
    log.warning(
        "inputs are normalised by mean %s and std %s, as in training, and not by %s and %s",
        *(kept.mean, kept.deviation, *given),
    )
    return replace(examples, transform=replace(transform, mean=kept.mean, std=kept.deviation))
