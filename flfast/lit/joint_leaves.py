"""Joint leaves: what local training changes in addition to the model, such as a second model.

They are registered in a module, so that Lightning moves and converts them with the model.
"""

import torch
from torch import Tensor, nn

from flfast.state.tree import Tree, tree_map
from flfast.state.weights import full_copy, map_weights


class JointLeaves(nn.Module):
    """Parameters and buffers by names that torch would not accept, such as `personal/fc.weight`.

    They are copies; floating-point ones have the given data type.
    """

    def __init__(self, leaves: Tree, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self._names = map_weights(list, leaves)

        def converted(leaf: Tensor) -> Tensor:
            return leaf.detach().to(device, dtype if leaf.is_floating_point() else None, copy=True)

        for i, leaf in enumerate(leaves["params"].values()):
            self.register_parameter(f"param{i}", nn.Parameter(converted(leaf)))
        for i, leaf in enumerate(leaves["buffers"].values()):
            self.register_buffer(f"buffer{i}", converted(leaf))

    @property
    def params(self) -> dict[str, nn.Parameter]:
        """Parameters by name."""
        return dict(zip(self._names["params"], self.parameters(), strict=True))

    @property
    def buffers_by_name(self) -> dict[str, Tensor]:
        """Buffers by name."""
        return dict(zip(self._names["buffers"], self.buffers(), strict=True))

    def read(self) -> Tree:
        """Copies on the CPU, `{"params": ..., "buffers": ...}`."""
        return tree_map(full_copy, {"params": self.params, "buffers": self.buffers_by_name})
