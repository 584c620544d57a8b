"""What local training changes beside the model, registered so that it follows the module."""

import torch
from torch import Tensor, nn

from flfast.state.dtensor import full_copy
from flfast.state.tree import Tree


class JointLeaves(nn.Module):
    """Parameters and buffers under names that a model cannot have.

    Args:
        leaves: `{"params": ..., "buffers": ...}` by name; floating-point ones take `dtype`.
        dtype: of the model.
        device: of the model.
    """

    def __init__(self, leaves: Tree, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self._names = {kind: list(leaves[kind]) for kind in ("params", "buffers")}

        def placed(leaf: Tensor) -> Tensor:
            return leaf.detach().to(device, dtype if leaf.is_floating_point() else None, copy=True)

        for i, leaf in enumerate(leaves["params"].values()):
            self.register_parameter(f"param{i}", nn.Parameter(placed(leaf)))
        for i, leaf in enumerate(leaves["buffers"].values()):
            self.register_buffer(f"buffer{i}", placed(leaf))

    @property
    def params(self) -> dict[str, nn.Parameter]:
        """Parameters by name."""
        return dict(zip(self._names["params"], self.parameters(), strict=True))

    @property
    def own_buffers(self) -> dict[str, Tensor]:
        """Buffers by name."""
        return dict(zip(self._names["buffers"], self.buffers(), strict=True))

    def read(self) -> Tree:
        """Copies on the CPU, `{"params": ..., "buffers": ...}`."""
        kinds: Tree = {"params": self.params, "buffers": self.own_buffers}
        return {
            kind: {name: full_copy(leaf) for name, leaf in own.items()}
            for kind, own in kinds.items()
        }
