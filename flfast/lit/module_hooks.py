"""What a run does with each method of a user's `LightningModule` or `LightningDataModule`.

One table for each: every public name of Lightning is in exactly one row of it.
"""

import dis
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import lightning as L

from flfast.lit.user_module import UserModule


class Table(NamedTuple):
    """What becomes of methods that a user overrides, by row.

    Attributes:
        honoured: called as Lightning documents, with both engines.
        eager_only: likewise, but programs do not call them, so `engine=auto` trains eagerly.
        once: called once for the whole run, and not for each client.
        plain: to be called by the user. An own version is used wherever the module calls it.
        uncalled: never called, and why.
        refused: a run stops before it begins, and why.
        newer: names above that the oldest supported Lightning does not have.
    """

    honoured: frozenset[str]
    eager_only: frozenset[str]
    once: frozenset[str]
    plain: frozenset[str]
    uncalled: Mapping[str, str]
    refused: Mapping[str, str]
    newer: frozenset[str]


def _names(text: str, *prefixed: str) -> frozenset[str]:
    """The names in a text, and those of hooks such as `on_test: start end`."""
    pairs = [words.split(": ") for words in prefixed]
    hooks = [f"{first}_{last}" for first, lasts in pairs for last in lasts.split()]
    return frozenset((*text.split(), *hooks))


_TO_DEVICE = "transfer_batch_to_device on_before_batch_transfer on_after_batch_transfer"
_HPARAMS = "hparams hparams_initial save_hyperparameters load_from_checkpoint"
_EVALUATION = "start end epoch_start epoch_end batch_start batch_end"

MODULE = Table(
    honoured=_names(
        "training_step validation_step test_step configure_optimizers on_save_checkpoint "
        "on_load_checkpoint",
        *(f"on_validation: {_EVALUATION}", f"on_test: {_EVALUATION}"),
    ),
    eager_only=_names(
        f"backward optimizer_step optimizer_zero_grad lr_scheduler_step configure_callbacks "
        f"configure_gradient_clipping on_fit_start on_fit_end on_after_backward {_TO_DEVICE}",
        *(f"on_train: {_EVALUATION}", "on_before: zero_grad backward optimizer_step"),
        "on_validation_model: eval train zero_grad",
    ),
    once=_names("setup configure_model"),
    plain=_names(
        f"log log_dict print all_gather freeze unfreeze to_onnx to_torchscript to_tensorrt "
        f"optimizers lr_schedulers manual_backward toggle_optimizer untoggle_optimizer "
        f"toggled_optimizer clip_gradients trainer fabric logger loggers device device_mesh dtype "
        f"current_epoch global_step global_rank local_rank on_gpu automatic_optimization "
        f"strict_loading example_input_array remove_ignored_hparams {_HPARAMS}"
    ),
    uncalled={
        **dict.fromkeys(_names("", "on_test_model: eval train"), "a run sets the mode itself"),
        **dict.fromkeys(
            _names("predict_step", f"on_predict: {_EVALUATION} model_eval"),
            "a run does not predict",
        ),
        **dict.fromkeys(
            _names(
                "prepare_data train_dataloader val_dataloader test_dataloader predict_dataloader"
            ),
            "the examples are those of data=",
        ),
        "teardown": "the module is needed until the run ends",
    },
    refused={"configure_sharded_model": "Lightning has replaced it by configure_model"},
    newer=frozenset({"remove_ignored_hparams", "to_tensorrt"}),
)

DATAMODULE = Table(
    honoured=_names("train_dataloader val_dataloader test_dataloader"),
    eager_only=_names(_TO_DEVICE),
    once=_names("prepare_data setup"),
    plain=_names(f"from_datasets name remove_ignored_hparams {_HPARAMS}"),
    uncalled={
        "predict_dataloader": "a run does not predict",
        **dict.fromkeys(
            ("state_dict", "load_state_dict"), "checkpoints hold what a run knows of its data"
        ),
        **dict.fromkeys(("teardown", "on_exception"), "the data are needed until the run ends"),
    },
    refused={},
    newer=frozenset({"remove_ignored_hparams"}),
)

TRAINER = _names(
    "accelerator devices precision plugins fast_dev_run accumulate_grad_batches gradient_clip_val "
    "gradient_clip_algorithm deterministic benchmark inference_mode profiler detect_anomaly "
    "barebones sync_batchnorm enable_progress_bar enable_model_summary val_check_interval "
    "check_val_every_n_epoch",
    "limit: train_batches val_batches test_batches",
)
"""Options of the Trainer that act; `config/known_words.txt` has what is set instead of others."""


def eager_only(module: L.LightningModule | L.LightningDataModule) -> list[str]:
    """Names of the hooks that a user has filled, and that only the eager engine calls."""
    return overridden(module, table_of(module).eager_only)


def table_of(module: L.LightningModule | L.LightningDataModule) -> Table:
    """The table for a module, or for a DataModule."""
    return MODULE if isinstance(module, L.LightningModule) else DATAMODULE


def overridden(
    module: L.LightningModule | L.LightningDataModule, names: Iterable[str]
) -> list[str]:
    """Those of the names that a user has given a body of their own, which does something."""
    base = L.LightningModule if isinstance(module, L.LightningModule) else L.LightningDataModule
    kind = type(module).__mro__[2] if isinstance(module, UserModule) else type(module)
    found = {n: vars(module).get(n) or getattr(kind, n, None) for n in sorted(names)}
    return [
        name
        for name, method in found.items()
        if method is not getattr(base, name, None) and not _is_empty(method)
    ]


def _is_empty(method: Any) -> bool:
    """Whether a method only returns None."""
    steps = [*dis.get_instructions(method)] if isinstance(method, FunctionType) else []
    constants = [step.argval for step in steps if "CONST" in step.opname]
    others = {step.opname for step in steps if "CONST" not in step.opname}
    return constants == [None] and others <= {"RESUME", "NOP", "RETURN_VALUE"}
