"""Predictions by a traced forward pass, in which convolutions are joined with their pools."""

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx import GraphModule

from flfast.engines.fused.graph.dataflow import calls
from flfast.engines.fused.graph.trace import like, lowered, record, simplified

MOST_SHAPES = 8
"""Batches of more shapes than this are predicted by the model itself."""


class JoinedForward:
    """A model's forward pass in evaluation mode; the model's own where nothing can be joined.

    Args:
        model: its weights are read at every call.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._programs: dict[object, GraphModule | None] = {}

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs [B, ...]."""
        key = (inputs.shape, inputs.stride(), inputs.dtype)
        program = self._programs.get(key)
        if program is not None and not self._hooked():
            return program(*self._given(inputs))
        outputs: Tensor = self._model(inputs)
        if key not in self._programs and inputs.is_cpu and len(self._programs) < MOST_SHAPES:
            self._programs[key] = self._program(inputs, outputs)
        return outputs

    def _hooked(self) -> bool:
        """Whether others want to see what happens inside of the model."""
        hooks = (
            hook
            for module in self._model.modules()
            for found in (module._forward_hooks, module._forward_pre_hooks)  # noqa: SLF001
            for hook in found.values()
        )
        return any(not hook.__module__.startswith("flfast.") for hook in hooks)

    def _given(self, inputs: Tensor) -> list[Tensor]:
        return [*self._model.parameters(), *self._model.buffers(), inputs]

    def _program(self, inputs: Tensor, expected: Tensor) -> GraphModule | None:
        """A program that gives the expected outputs, if the kernels have a part in it."""
        names = [name for name, _ in self._model.named_parameters()]
        names += [name for name, _ in self._model.named_buffers()]

        def run(*given: Tensor) -> Tensor:
            weights = dict(zip(names, given[:-1], strict=True))
            found: Tensor = functional_call(self._model, weights, (given[-1],))
            return found

        try:
            with torch.inference_mode(mode=False), torch.no_grad():
                program = record(run, [like(leaf) for leaf in self._given(inputs)])
            lowered(simplified(program))
            if not any(calls(program.graph, torch.ops.flfast.conv_pool.default)):
                return None
            same = torch.allclose(program(*self._given(inputs)), expected, rtol=1e-4, atol=1e-5)
        except Exception:  # noqa: BLE001 - tracing may raise any exception
            return None
        return program if same else None
