"""What a run does with each public name of Lightning's modules, DataModules and Trainer."""

import dis
import inspect
from collections.abc import Collection, Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any

import lightning as L
from torch import nn
from torchmetrics import Metric

from flfast.lit.user_module import UserModule

Table = Mapping[str, frozenset[str]]
"""Names that a user may override, by what becomes of them: of each row below, or why a run does
not call them. Names in no row are for users to call."""

CALLED = HONOURED, EAGER_ONLY, ONCE = "by both engines", "by the eager engine", "once in a run"


def _names(text: str, **hooks: str) -> frozenset[str]:
    """The names in a text, and those of hooks such as `on_test="start end"`."""
    return frozenset(text.split()) | {f"{k}_{v}" for k in hooks for v in hooks[k].split()}


_PHASE = "start end epoch_start epoch_end batch_start batch_end"
_MOVES = "transfer_batch_to_device on_before_batch_transfer on_after_batch_transfer"
_LOADERS = "train_dataloader val_dataloader test_dataloader"

MODULE: Table = {
    HONOURED: _names(
        """training_step validation_step test_step predict_step configure_optimizers
        on_save_checkpoint on_load_checkpoint""",
        on_validation=_PHASE,
        on_test=_PHASE,
    ),
    EAGER_ONLY: _names(
        f"""backward optimizer_step optimizer_zero_grad lr_scheduler_step on_after_backward
        configure_callbacks configure_gradient_clipping on_fit_start on_fit_end {_MOVES}""",
        on_train=_PHASE,
        on_before="zero_grad backward optimizer_step",
        on_validation_model="eval train zero_grad",
    ),
    ONCE: _names("setup configure_model"),
    "the examples are those of data=, by default the module": _names(f"prepare_data {_LOADERS}"),
    "predict_step alone predicts": _names("predict_dataloader", on_predict=f"{_PHASE} model_eval"),
    "a run sets the mode itself": _names("", on_test_model="eval train"),
    "the run needs the module until its end": _names("teardown"),
}
DATAMODULE: Table = {
    HONOURED: _names(_LOADERS),
    EAGER_ONLY: _names(_MOVES),
    ONCE: _names("prepare_data setup"),
    "predict_step alone predicts": _names("predict_dataloader"),
    "checkpoints know which examples were used": _names("state_dict load_state_dict"),
    "the run needs the data until its end": _names("teardown on_exception"),
}


def table_of(module: L.LightningModule | L.LightningDataModule) -> Table:
    """The table for a module, or for a DataModule."""
    return MODULE if isinstance(module, L.LightningModule) else DATAMODULE


def eager_only(module: L.LightningModule | L.LightningDataModule) -> list[str]:
    """Names of the hooks that a user has filled, and that only the eager engine calls.

    A hook that no more than logs what metric objects say, or resets them, does not count.
    """
    parts = module.named_children() if isinstance(module, L.LightningModule) else ()
    kinds = (Metric, nn.ModuleDict, nn.ModuleList)
    metrics = [name for name, part in parts if all(isinstance(p, kinds) for p in part.modules())]
    kind, base = _classes(module)
    plain = {n for n in _LOGGING if getattr(kind, n, None) is getattr(base, n, None)}
    beside = {*metrics, *plain - vars(module).keys()}  # a method of the user's may do anything
    return overridden(module, table_of(module)[EAGER_ONLY], beside=beside)


def overridden(
    module: L.LightningModule | L.LightningDataModule,
    names: Iterable[str],
    *,
    beside: Collection[str] = (),
) -> list[str]:
    """Those of the names to which a user has given a body that does something else.

    What a hook without arguments calls does not count, if it is named in `beside`.
    """
    kind, base = _classes(module)
    own = {name: vars(module).get(name) or getattr(kind, name) for name in sorted(names)}
    pairs = ((name, method, getattr(base, name)) for name, method in own.items())
    acts = (n for n, its, base in pairs if its is not base and (_acts(its, beside) or _acts(base)))
    return [*acts]


def _classes(module: L.LightningModule | L.LightningDataModule) -> tuple[type, type]:
    """The user's class, and that of Lightning below it."""
    base = L.LightningModule if isinstance(module, L.LightningModule) else L.LightningDataModule
    return (type(module).__mro__[2] if isinstance(module, UserModule) else type(module)), base


def _acts(method: Any, beside: Collection[str] = ()) -> bool:
    """Whether a method does more than to return None, or names in its code more than these."""
    if not isinstance(method, FunctionType):
        return True
    code = method.__code__
    if beside and inspect.signature(method).parameters.keys() == {"self"} and not code.co_freevars:
        codes = [code, *(const for const in code.co_consts if isinstance(const, CodeType))]
        known = all(name in beside for each in codes for name in each.co_names)
        return not known or any(
            _reaches(step) for each in codes for step in dis.get_instructions(each)
        )
    steps = [*dis.get_instructions(method)]
    constants = [step.argval for step in steps if "CONST" in step.opname]
    others = {step.opname for step in steps if "CONST" not in step.opname}
    return constants != [None] or not others <= {"RESUME", "NOP", "RETURN_VALUE"}


def _reaches(step: dis.Instruction) -> bool:
    """Whether an instruction stores outside of the method, or calls what is global."""
    return step.opname in _STORES or (step.opname == "LOAD_GLOBAL" and step.argval != "float")


_STORES = {
    *("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"),
    *("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"),
}
_LOGGING = ("log", "log_dict", "compute", "reset", "items", "values", "float")
"""Names in hooks that act on nothing but columns and metric objects."""
