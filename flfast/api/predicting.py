"""Predicts the examples of a Python program with a model of a saved run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flfast.api.own_frame import is_frame, raw_frame
from flfast.config.errors import ConfigError, refused
from flfast.config.own import Own
from flfast.config.saved_options import PREDICT, read_options
from flfast.config.saved_run import SavedRun, find_run
from flfast.datamodules.preprocessing import Preprocessing, read_preprocessing
from flfast.datamodules.sources.source import RawInputs
from flfast.setup.raw_predictions import predict


def predicted(data: Any, words: Sequence[str], objects: Own) -> dict[str, np.ndarray]:
    """Columns of predictions, each [N]; the words are those of `flfast.predict`.

    Raises:
        ConfigError: naming key, value and what is allowed.
    """
    options, overrides = read_options(words, PREDICT)
    if "output" in options:
        raise ConfigError("output= is of the command; allowed: to_csv of the result")
    needed = ("data", "model") if data is None else ("model",)
    saved = find_run(options, overrides, objects, needed)
    with refused():
        kept = read_preprocessing(saved.folder)
        raw = None if data is None else _raw(saved, kept, data, options.get("key"))
    return predict(saved, raw, key=options.get("key"), client=options.get("client"))


def _raw(
    saved: SavedRun, kept: Preprocessing | None, data: Any, key: str | None
) -> RawInputs | None:
    if is_frame(data):
        if kept is None or kept.columns is None:
            raise ValueError("data= is a DataFrame, and the run had no table; allowed: inputs")
        owner = saved.config.data.get("owner") or saved.config.data.get("client")
        return raw_frame(data, kept.columns, key=key, owner=owner)
    if key is not None:
        raise ValueError(f"key={key} names a column of a DataFrame")
    inputs = torch.as_tensor(data)
    if kept is not None and kept.input_type == "float32" and inputs.is_floating_point():
        inputs = inputs.float()
    given = str(inputs.dtype).removeprefix("torch.")
    if kept is not None and given != kept.input_type:
        raise ValueError(f"data= has inputs of type {given}; allowed: {kept.input_type}")
    return RawInputs(inputs, {"row": np.arange(len(inputs))})
