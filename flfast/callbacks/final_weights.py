"""Writes `model.pt`: the server's model at the end of the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

if TYPE_CHECKING:
    from flfast.federation.loop import Federation


class FinalWeights(Callback):
    """Saves the weights as a state dict of CPU tensors.

    `torch.load(path, weights_only=True)` reads it; `Module.load_state_dict` accepts it.
    """

    def on_run_end(self, federation: Federation) -> None:
        """Write the file on rank 0; gathering the weights may be collective."""
        _save(federation.weights(), federation.run_dir / "model.pt")


@rank_zero_only
def _save(weights: dict[str, torch.Tensor], path: Path) -> None:
    # Renaming is atomic: a reader sees the whole file or none.
    temporary = path.with_name(f"{path.name}.tmp")
    torch.save(weights, temporary)
    temporary.replace(path)
