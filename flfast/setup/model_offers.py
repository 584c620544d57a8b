"""Values that a model receives if it has a parameter of that name."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from flfast.datamodules.examples import Examples
from flfast.state.injection import asks_for


def model_offers(model: Callable[..., Any], examples: Examples) -> dict[str, Any]:
    """Arguments by name; a model gets the ones that are its parameters.

    - `input_shape`: shape of one input; `num_classes`: C.
    - `task`: the learning task.
    - `num_tokens`: size of the vocabulary of the inputs; 0 if they are no tokens.
    - `categories`: number of categories of each of the last columns of a table.
    """
    offers = {
        "input_shape": examples.input_shape,
        "num_classes": examples.num_classes,
        "task": examples.task,
        "categories": examples.categories,
    }
    if not asks_for(model, "num_tokens"):
        return offers
    return {**offers, "num_tokens": _num_tokens(examples)}


def _num_tokens(examples: Examples) -> int:
    if examples.vocabulary is not None:
        return len(examples.vocabulary)
    if examples.task == "language":
        return examples.num_classes
    inputs = examples.inputs
    # Whole numbers of 8 bits are images.
    if not isinstance(inputs, Tensor) or inputs.is_floating_point() or inputs.itemsize == 1:
        return 0
    return int(inputs.max()) + 1
