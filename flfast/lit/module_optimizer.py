"""`optimizer=module`: the optimizers and schedulers that a LightningModule configures itself."""

from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from flfast.lit.local_module import LocalModule


class ModuleOptimizer:
    """Makes local optimizers as a module's `configure_optimizers` does.

    A call gives one over other parameters, for engines that take the steps themselves.

    Attributes:
        lr: learning rate of the first parameter group. Those of all groups are multiplied by how
            the round's rate differs from it.
    """

    def __init__(self, lr: float | Literal["auto"] = "auto") -> None:
        self.lr = 1.0 if lr == "auto" else lr
        self._num_params, self._scheduled = 0, False
        self._optimizers: list[Optimizer] = []

    @classmethod
    def of(cls, configured: Any, num_params: int) -> "ModuleOptimizer":
        """That of a module which trains so many parameters, and has returned this on trial."""
        optimizers = [one for one in _of_kind(configured, Optimizer) if one.param_groups]
        first = optimizers[0].param_groups[0] if optimizers else {}
        found = cls(float(first.get("initial_lr", first.get("lr", 1.0))))  # before warm-up
        found._optimizers, found._num_params = optimizers, num_params
        found._scheduled = any(True for _ in _of_kind(configured, LRScheduler))
        return found

    @property
    def several(self) -> bool:
        """Whether the module has several optimizers, or none."""
        return len(self._optimizers) != 1

    @property
    def sgd(self) -> dict[str, Any]:
        """Momentum of the module's steps if they are plain SGD's, as in `optimizer=sgd`; or {}."""
        if self.several or self._scheduled or type(self._optimizers[0]) is not torch.optim.SGD:
            return {}
        group, *others = self._optimizers[0].param_groups
        plain = not (others or group["dampening"] or group["maximize"])
        return {name: group[name] for name in ("momentum", "nesterov") if plain}

    def __call__(self, params: Sequence[nn.Parameter], *, lr: float) -> Optimizer:
        """An optimizer of these parameters.

        Raises:
            NotImplementedError: if the module's has other parts; a clause that names them.
        """
        if self.several or self._scheduled:
            what = "several optimizers" if self.several else "learning-rate schedulers"
            raise NotImplementedError(f"the module has {what}")
        (group, *others), kind = self._optimizers[0].param_groups, type(self._optimizers[0])
        if others or sum(p.requires_grad for p in group["params"]) != self._num_params:
            raise NotImplementedError("the module's optimizer treats parameters differently")
        taken = signature(kind).parameters  # a group may also have what its class sets itself
        options = {n: value for n, value in group.items() if n in taken and n != "params"}
        try:
            return kind(params, **{**options, "lr": lr})
        except TypeError as error:
            what = f"the module's {kind.__name__} is not made of its parameters and options"
            raise NotImplementedError(what) from error

    def adapt(self, configured: Any, local: LocalModule) -> None:
        """Give what a module has configured the round's rate.

        Its only optimizer also gets the leaves beside the model, and its state.
        """
        optimizers, schedulers = ([*_of_kind(configured, k)] for k in (Optimizer, LRScheduler))
        factor = float(local.context.lr) / self.lr if self.lr else 1.0
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group.update({n: group[n] * factor for n in ("lr", "initial_lr") if n in group})
        for scheduler in schedulers:
            if hasattr(scheduler, "base_lrs"):
                scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]
        if len(optimizers) != 1:
            return
        groups = {id(p): group for group in optimizers[0].param_groups for p in group["params"]}
        for name, p in local.joint.params.items():
            if p.requires_grad:  # as the parameter that it stands beside
                like = local.params.get(name.rpartition("/")[2])
                groups.get(id(like), optimizers[0].param_groups[0])["params"].append(p)
        local.begun(optimizers[0])


def _of_kind(configured: Any, kind: type) -> Iterator[Any]:
    """The optimizers, or the schedulers, of what `configure_optimizers` returns in any form."""
    if isinstance(configured, kind):
        yield configured
    elif isinstance(configured, (Mapping, list, tuple)):
        inner = configured.values() if isinstance(configured, Mapping) else configured
        for value in inner:
            yield from _of_kind(value, kind)
    elif hasattr(configured, "scheduler"):  # Lightning's LRSchedulerConfig
        yield from _of_kind(configured.scheduler, kind)
