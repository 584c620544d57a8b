"""A user's `LightningModule` in a run: the Trainer fits it, and the algorithm acts from outside.

`adopt` puts `UserModule` in front of the module's own class. Hooks, callbacks and `self.log` stay
Lightning's; only what a local step computes passes through `OwnStepModule`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from copy import deepcopy
from inspect import Parameter, signature
from typing import Any, TypeGuard, cast
from unittest.mock import patch

import lightning as L
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torchmetrics import Metric

Logged = dict[str, Tensor]
"""Logged values by the names of their columns, each []."""


class Link:
    """What a module in a run belongs to. Copies of the module belong to nothing.

    Attributes:
        round_idx: the round of a local training, from 1; 0 outside of one.
        local: the `OwnStepModule` whose Trainer fits the module; None outside of a run.
        logged: values that the current call of a step logs; None while nobody reads them.
        silent: whether Lightning does not hear of this call, and metric objects do not count it.
        recorded: whether a program is recorded, which repeats what this call does.
        results: Lightning's record of an evaluation; None outside of one.
        names: what the module has logged in evaluations, as it writes it.
    """

    def __init__(self) -> None:
        self.round_idx = 0
        self.local: Any = None
        self.logged: Logged | None = None
        self.silent = self.recorded = False
        self.results: Any = None
        self.names: set[str] = set()

    def is_read(self, name: str) -> None:
        """Refuse to record a program of a step that reads what differs from step to step."""
        if self.recorded:
            raise NotImplementedError(f"the module reads {name}, which programs do not follow")

    def __reduce__(self) -> tuple[type["Link"], tuple[()]]:
        return Link, ()


def _read(name: str) -> property:
    """A property of Lightning's that programs do not follow; counts are within local training."""
    plain: property = getattr(L.LightningModule, name)

    def read(module: "UserModule") -> Any:
        module.flfast_link.is_read(f"self.{name}")
        return cast(Any, plain.fget)(module)

    return property(read, plain.fset)


class UserModule(L.LightningModule):
    """What a run adds to the class of a user's module; see `adopt`. It has no further names."""

    flfast_link: Link

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """One local step: the user's, inside of the algorithm's objective."""
        if self.flfast_link.local is None:
            outputs = call_step(self, "training_step", batch, batch_idx)
            if self.automatic_optimization and (loss := loss_of(outputs)) is not None:
                _check_loss(loss)
            return outputs
        return self.flfast_link.local.step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        """The module's own optimizers, unless the run names one."""
        local = self.flfast_link.local
        return user_method(self, "configure_optimizers")() if local is None else local.configured()

    def _done(self, stage: str | None = None) -> None:
        """Nothing: a run sets the module up once, before it adopts it."""

    prepare_data = configure_model = setup = teardown = _done

    def on_train_start(self) -> None:
        """The module's own hook, then that of the run."""
        user_method(self, "on_train_start")()
        if self.flfast_link.local is not None:
            self.flfast_link.local.on_train_start()

    def on_train_end(self) -> None:
        """The module's own hook, then that of the run."""
        user_method(self, "on_train_end")()
        if self.flfast_link.local is not None:
            self.flfast_link.local.on_train_end()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """The algorithm's correction of the gradients, then the module's own hook."""
        if self.flfast_link.local is not None:
            self.flfast_link.local.on_before_optimizer_step(optimizer)
        user_method(self, "on_before_optimizer_step")(optimizer)

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Log as Lightning does, and note values of steps for the run's columns."""
        link, reduce = self.flfast_link, options.get("reduce_fx", "mean")
        if not isinstance(value, Metric):
            value = torch.as_tensor(value, device=self.device).squeeze()
        if link.results is not None:
            about = {"batch_size": options.get("batch_size"), "metric_attribute": name}
            hook = self._current_fx_name or "on_test_epoch_end"
            always: Any = {"on_step": False, "on_epoch": True, "reduce_fx": reduce}
            link.results.log(hook, name, value, **always, **about)
            link.names.add(name)
            return
        is_mean = isinstance(value, Tensor) and reduce in {"mean", torch.mean}
        if link.logged is not None and is_mean:
            link.logged.setdefault(column_of(name), value.detach())
        if not link.silent:
            # Ranks have different clients, and do not wait for each other's numbers.
            super().log(name, value, *args, **{**options, "sync_dist": False})

    trainer: Any = _read("trainer")
    current_epoch: Any = _read("current_epoch")
    global_step: Any = _read("global_step")


def user_method(module: UserModule, name: str) -> Callable[..., Any]:
    """The user's method of that name."""
    found: Callable[..., Any] = getattr(super(UserModule, module), name)
    return found


def call_step(module: UserModule, name: str, batch: Any, batch_idx: Any) -> Any:
    """Call the user's step with as many of the arguments as it has."""
    step, given = user_method(module, name), (batch, batch_idx)
    kinds = [p.kind for p in signature(step).parameters.values()]
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    num = sum(kind in positional for kind in kinds)
    return step(*given) if Parameter.VAR_POSITIONAL in kinds else step(*given[:num])


@contextmanager
def observed(
    module: UserModule, logged: Logged, *, silent: bool, recorded: bool
) -> Iterator[None]:
    """Within the context, a call of a step notes in `logged` what it logs; see `Link`."""
    link = module.flfast_link
    link.logged, link.silent, link.recorded = logged, silent, recorded
    try:
        apart = uncounted if recorded else forgotten
        with apart(module) if silent else nullcontext():
            yield
    finally:
        link.logged, link.silent, link.recorded = None, False, False


def _metrics(module: nn.Module) -> list[Metric]:
    return [part for part in module.modules() if isinstance(part, Metric)]


@contextmanager
def _changed_metrics(module: nn.Module, **values: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for metric in _metrics(module):
            stack.enter_context(patch.multiple(metric, **values))
        yield


def uncounted(module: nn.Module) -> AbstractContextManager[None]:
    """Metric objects within a module count nothing in this context, and are NaN."""
    like = next(module.parameters())

    def nan(*_: Any, **__: Any) -> Tensor:
        return torch.full((), torch.nan, dtype=like.dtype, device=like.device)

    return _changed_metrics(module, update=nan, forward=nan, compute=nan)


@contextmanager
def forgotten(module: nn.Module) -> Iterator[None]:
    """Metric objects within a module, perhaps its loss, forget afterwards what they counted."""
    before = [(one, {**vars(one), **one._copy_state_dict()}) for one in _metrics(module)]  # noqa: SLF001
    try:
        yield
    finally:
        for metric, attributes in before:
            vars(metric).update(attributes)


def on_own_rank(module: nn.Module) -> AbstractContextManager[None]:
    """Metric objects within a module do not wait for other ranks, which have other clients."""
    return _changed_metrics(module, sync_on_compute=False, _to_sync=False)


def overrides(model: UserModule, name: str) -> bool:
    """Whether the user's class has its own method of a name."""
    return getattr(type(model).__mro__[2], name) is not getattr(L.LightningModule, name)


def round_number(module: L.LightningModule) -> int:
    """The round that a module trains in, from 1; 0 outside of a run.

    Its own counts, `current_epoch` and `global_step`, are within the local training.
    """
    if not isinstance(module, UserModule):
        return 0
    module.flfast_link.is_read("the round")
    return module.flfast_link.round_idx


def adopt(module: L.LightningModule) -> UserModule:
    """The same module, in place, as one that a run can train."""
    kind = type(module)
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    module.__class__ = type(kind.__name__, (UserModule, kind), about)
    object.__setattr__(module, "flfast_link", Link())
    assert isinstance(module, UserModule)
    return module


def without_traces(model: UserModule) -> UserModule:
    """A module whose steps leave nothing in the given one.

    A training step of a user's module may count, keep outputs, or draw random numbers, in Python.
    This is a copy with the same parameters, unless the module cannot be copied.
    """
    kept = tree_leaves([[*vars(part).values()] for part in model.modules()])
    outputs = [x for x in kept if isinstance(x, Tensor) and not x.is_leaf]
    shared = {id(p): p for p in model.parameters()}  # and outputs have no copies
    with suppress(Exception):
        return deepcopy(model, {**shared, **{id(x): x.detach() for x in outputs}})
    return model


def released(module: UserModule) -> L.LightningModule:
    """The same module, in place, as its user made it."""
    found: Any = module
    found.__class__ = type(module).__mro__[2]
    del found.flfast_link
    return found


def is_user_module(model: object) -> TypeGuard[L.LightningModule]:
    """Whether a model is a LightningModule that says itself how it trains."""
    return steps_itself(type(model))


def steps_itself(kind: type) -> bool:
    """Whether this is the class of such modules."""
    base = L.LightningModule
    return issubclass(kind, base) and kind.training_step is not base.training_step


_STAGES = re.compile(r"(train|(val|valid|validation|test))[/_](?=.)")


def column_of(name: str) -> str:
    """A logged name without the stage in front, which columns have themselves.

    >>> column_of("val/acc"), column_of("test_loss"), column_of("f1"), column_of("valley/x")
    ('acc', 'loss', 'f1', 'valley/x')
    """
    return _STAGES.sub("", name, count=1) if _STAGES.match(name) else name


def _check_loss(loss: Tensor) -> None:
    if loss.numel() != 1 or not loss.requires_grad:
        what = f"of shape {[*loss.shape]}" if loss.requires_grad else "without a gradient"
        raise TypeError(f"training_step returns a loss {what}; allowed: one number to minimise")


def is_evaluated(name: str) -> bool:
    """Whether a logged name says that it is of validation or tests.

    >>> is_evaluated("val_loss"), is_evaluated("train/loss"), is_evaluated("value")
    (True, False, False)
    """
    found = _STAGES.match(name)
    return found is not None and found[2] is not None


def loss_of(outputs: Any) -> Tensor | None:
    """The loss that a training step returned; None if it skips the step.

    Raises:
        TypeError: if it is neither a tensor nor a dict with one under `loss`.
    """
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if loss is not None and not isinstance(loss, Tensor):
        raise TypeError(
            f"training_step returns a {type(loss).__name__}; allowed: a loss, a dict with a loss, "
            f"or None"
        )
    return loss
