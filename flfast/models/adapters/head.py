"""Trains one layer, by default the last linear one, on the features of a frozen model."""

from torch import nn

from flfast.models.adapters.adapted import Adapted, linear_layers, shared_with, whole_model
from flfast.models.adapters.frozen_base import FrozenBase


def head(model: nn.Module, *, layer: str | None) -> Adapted:
    """Freeze everything but a layer.

    The model is changed in place.

    Raises:
        ValueError: if there is no such layer, or other layers share its parameters.
    """
    linear = list(linear_layers(model))
    if layer is None and not linear:
        raise ValueError("adapter=head: the model has no linear layer; set adapter.layer")
    name = linear[-1] if layer is None else layer
    found = dict(model.named_modules()).get(name)
    names = [] if found is None else [n for n, _ in found.named_parameters(prefix=name)]
    if not name or not names:
        raise ValueError(
            f"adapter.layer={name}: no layer with parameters; allowed: {', '.join(linear)}"
        )
    others = shared_with(model, name)
    if others:
        raise ValueError(
            f"adapter.layer={name} shares its weights with {', '.join(others)}, which would be "
            f"trained, too; allowed: a layer with weights of its own"
        )
    whole = whole_model(model)
    return Adapted("head", model, FrozenBase(model, names), whole)
