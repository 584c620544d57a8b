"""Muon for matrices, and AdamW for all other parameters, as one optimizer."""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import AdamW, Optimizer

from flfast.state.options import BelowOne, NonNegative, Positive


class MuonAdamW(Optimizer):
    """Muon (`torch.optim.Muon`) for hidden matrices, AdamW for the others; both at the rate `lr`.

    Muon's updates are scaled to the root mean square of AdamW's, so that one rate fits both.

    Args:
        params: parameters, in one group.
        lr: learning rate.
        momentum: Muon's; with Nesterov's look ahead.
        betas: AdamW's.
        weight_decay: decoupled, of all parameters.
        adamw_names: a matrix gets AdamW, too, if a part of its path begins with one of these.
        names: names of the parameters; None: Muon gets all matrices.

    Raises:
        ValueError: if torch has no Muon.
    """

    def __init__(  # noqa: PLR0913 - one parameter an option
        self,
        params: Sequence[Parameter],
        *,
        lr: Positive,
        momentum: BelowOne,
        betas: list[BelowOne],
        weight_decay: NonNegative,
        adamw_names: list[str],
        names: Sequence[str] | None = None,
    ) -> None:
        muon: Any = getattr(torch.optim, "Muon", None)
        if muon is None:
            raise ValueError(
                f"optimizer=muon with torch {version('torch')}: needs torch 2.9 or newer; "
                f"allowed: optimizer=adamw, sgd, ..., or experiment=diloco for muloco"
            )
        super().__init__(params, {"lr": lr})
        names = names or [""] * len(params)
        is_matrix = [
            p.ndim == 2 and not any(f".{part}" in f".{name}" for part in adamw_names)
            for p, name in zip(params, names, strict=True)
        ]
        matrices = [p for p, hidden in zip(params, is_matrix, strict=True) if hidden]
        others = [p for p, hidden in zip(params, is_matrix, strict=True) if not hidden]
        self._optimizers: list[Optimizer] = []
        if matrices:
            options = {"momentum": momentum, "adjust_lr_fn": "match_rms_adamw"}
            self._optimizers += [muon(matrices, lr, weight_decay, **options)]
        if others:
            pair = betas[0], betas[1]
            self._optimizers += [AdamW(others, lr, pair, weight_decay=weight_decay)]

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step of both; they share this optimizer's state and learning rate."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self._optimizers:
            optimizer.state = self.state
            optimizer.param_groups[0]["lr"] = self.param_groups[0]["lr"]
            optimizer.step()
        return loss
