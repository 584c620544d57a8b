"""Adapters that the library peft puts into a model's layers.

peft replaces each chosen layer by one that holds it as `base_layer`. All other modules, the names
of their parameters, and the model's forward stay.
"""

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from flfast.models.adapters.adapted import Adapted, linear_layers, shared_with, whole_model
from flfast.models.adapters.frozen_base import FrozenBase
from flfast.models.adapters.rounded_base import RoundedLinear
from flfast.state.tree import Tree

_NAME = "default"  # peft's name for an adapter; the library takes seconds to import


def known_layers(model: nn.Module, known: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The layers that peft chooses in a model of transformers; None for other models.

    `known` has ends of names by type of model.
    """
    for module in model.modules():
        kind = getattr(getattr(module, "config", None), "model_type", None)
        if isinstance(kind, str) and kind in known:
            return list(known[kind])
    return None


def target_layers(
    model: nn.Module, key: str, wanted: Sequence[str] | None
) -> tuple[list[str], list[str] | str]:
    """Names of the layers that get an adapter; and for peft: these, or a regular expression.

    They are wanted by names or ends of names; None wants all linear layers with weights of their
    own. Errors name the config's `key`.

    Raises:
        ValueError: if a name fits no layer, or no layer that can have an adapter.
    """
    allowed = list(_adaptable(model))
    names = allowed
    if wanted is None:
        linear = set(linear_layers(model))
        names = [name for name in allowed if name in linear and not shared_with(model, name)]
    else:
        for end in wanted:
            if not any(_ends(name, end) for name in allowed):
                raise ValueError(
                    f"adapter.{key}: {end} fits no linear or convolutional layer that the model "
                    f"calls; allowed: {', '.join(allowed)}, or ends of these names"
                )
        names = [name for name in allowed if any(_ends(name, end) for end in wanted)]
    if not names:
        raise ValueError(
            f"adapter.{key}=null: the model has no linear layer with weights of its own; allowed: "
            f"{', '.join(allowed) or 'another model'}"
        )
    for name in names:
        others = shared_with(model, name)
        if others:
            raise ValueError(
                f"adapter.{key}: {name} shares its weights with {', '.join(others)}; allowed: "
                f"layers with weights of their own"
            )
    everything = [name for name, _ in model.named_modules()]
    found = [name for name in everything if any(_ends(name, own) for own in names)]
    exact = set(found) == set(names)
    return names, names if exact else "|".join(map(re.escape, names))


def adapt_with(
    name: str, model: nn.Module, settings: Any, *, fixed: str | None, rounds: bool = False
) -> Adapted:
    """Put peft's adapter with these settings into a model, and freeze everything else.

    The adapter's own parameters with `fixed` in their names keep their first values. With
    `rounds`, weights of frozen linear layers have 8 bits.
    """
    whole = whole_model(model)
    with warnings.catch_warnings():
        # It finds out by itself which layers of transformers store their weights transposed.
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")
        import_module("peft").inject_adapter_in_model(settings, model, adapter_name=_NAME)
    if any(isinstance(module, nn.TransformerEncoderLayer) for module in model.modules()):
        # In evaluation they would read the weights of the base, and skip the adapter.
        torch.backends.mha.set_fastpath_enabled(value=False)
    own = [n for n, p in model.named_parameters() if p.requires_grad]
    constant = [n for n in own if fixed is not None and fixed in n]
    if rounds:
        _round(model, own)
    base = FrozenBase(model, [n for n in own if n not in constant])
    about = settings.to_dict() | {"inference_mode": True}
    return Adapted(
        name,
        model,
        base,
        whole,
        merge=_merge,
        saved_name=_saved_name,
        changes=partial(_changes, model),
        fixed=tuple(constant),
        settings=json.loads(json.dumps(about, default=_plain)),
    )


def _adaptable(model: nn.Module) -> list[str]:
    """Names of linear and convolutional layers that their modules call."""
    kinds: tuple[type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    linear = set(linear_layers(model))
    return [
        name
        for name, module in model.named_modules()
        if name in linear
        or isinstance(module, kinds)
        or type(module).__module__ == "transformers.pytorch_utils"  # its own linear layer
    ]


def _ends(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")


def _round(model: nn.Module, trained: Sequence[str]) -> None:
    """Let frozen linear layers with weights of their own have 8 bits."""
    names = [n for n in linear_layers(model) if f"{n}.weight" not in trained]
    chosen = [name for name in names if not shared_with(model, name)]
    if not chosen:
        raise ValueError(
            "adapter.base_bits=8: the model has no frozen linear layer (torch.nn.Linear) with a "
            "weight of its own; allowed: null, or another model"
        )
    for name in chosen:
        linear: Any = model.get_submodule(name)
        _put(model, name, RoundedLinear(linear))


def _merge(model: nn.Module) -> None:
    """Replace the layers of peft, and rounded ones, by plain ones that compute the same."""
    for path, layer in list(model.named_modules()):
        if isinstance(layer, RoundedLinear):
            _put(model, path, layer.as_linear())
    kind = import_module("peft.tuners.tuners_utils").BaseTunerLayer
    for path, layer in list(model.named_modules()):
        if isinstance(layer, kind):
            layer.merge()
            _put(model, path, layer.get_base_layer())


def _put(model: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, layer)


def _changes(model: nn.Module, products: Tree) -> dict[str, Tensor]:
    """What products B A [out, in * kernel] of LoRA add to the weights of their layers."""
    changes = {}
    for name, product in products.items():
        path = name.partition(".lora_A.")[0]
        layer: Any = model.get_submodule(path)
        moved = product.T if getattr(layer, "fan_in_fan_out", False) else product
        scaled = layer.scaling[_NAME] * moved
        changes[f"{path}.base_layer.weight"] = scaled.reshape(layer.base_layer.weight.shape)
    return changes


def _saved_name(name: str) -> str:
    """The name of a leaf as `PeftModel.from_pretrained` looks for it."""
    return f"base_model.model.{name.replace(f'.{_NAME}', '')}"


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)
