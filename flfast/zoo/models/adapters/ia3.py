"""IA3: the outputs of chosen layers are multiplied by trained vectors.

Liu, Tam, Muqeeth, Mohta, Huang, Bansal, Raffel: Few-Shot Parameter-Efficient Fine-Tuning is Better
and Cheaper than In-Context Learning. NeurIPS 2022. https://arxiv.org/abs/2205.05638

    h = l * (W x + b),  or h = W (l * x) + b for layers of `feedforward_modules`

The vectors l are one at first, so that the first model is the base.
"""

import re

from torch import nn

from flfast.models.adapters.adapted import Adapted
from flfast.models.adapters.injected import adapt_with, known_layers, target_layers
from flfast.state.extras import import_extra


def ia3(
    model: nn.Module, *, target_modules: list[str] | None, feedforward_modules: list[str] | None
) -> Adapted:
    """Scale inputs or outputs of linear and convolutional layers, by the library peft.

    The model is changed in place.

    Raises:
        ValueError: if peft is missing, or the model has no such layers.
    """
    peft = import_extra("peft", extra="lora", by="adapter=ia3")
    known = known_layers(model, peft.utils.TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING)
    inner = known_layers(model, peft.utils.TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING)
    names, layers = target_layers(model, "target_modules", target_modules or known)
    scaled = inner if feedforward_modules is None and target_modules is None else None
    chosen = feedforward_modules or scaled
    first = target_layers(model, "feedforward_modules", chosen)[0] if chosen else []
    outside = sorted(set(first) - set(names))
    if outside:
        raise ValueError(
            f"adapter.feedforward_modules: {', '.join(outside)} is not among "
            f"adapter.target_modules; allowed: {', '.join(names)}"
        )
    # peft takes a list for ends of names without a dot: `fc` would also mean `my_fc`.
    inputs = "|".join(map(re.escape, first)) if first else []
    settings = peft.IA3Config(target_modules=layers, feedforward_modules=inputs)
    return adapt_with("ia3", model, settings, fixed=None)
