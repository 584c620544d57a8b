"""Predictions by a traced forward pass, in which convolutions are joined with their pools."""

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from flfast.engines.fused.graph.dataflow import calls
from flfast.engines.fused.graph.trace import lowered, record, simplified, stand_ins
from flfast.state.native.compiler import missing
from flfast.state.weights import called_with

PART = 128
"""Examples that are predicted at once: activations of a thousand take hundreds of megabytes."""

MOST_SHAPES = 8
"""Parts of more shapes than this are predicted by the model itself."""


class JoinedForward:
    """A model's forward pass in evaluation mode; the model's own where nothing can be joined.

    The model's weights are read at every call.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._programs: dict[object, GraphModule | None] = {}
        self._possible = any(isinstance(module, nn.Conv2d) for module in model.modules())

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs [B, ...]."""
        joined = self._possible and not self._hooked()
        if joined and not self._programs:
            # Our kernels use one thread of a CPU.
            usable = inputs.is_cpu and torch.get_num_threads() == 1 and missing() is None
            joined = self._possible = usable and self._agrees(inputs[: 2 * PART])
        if not joined:
            outputs: Tensor = self._model(inputs)
            return outputs
        return torch.cat([self._predict(part) for part in inputs.split(PART)])

    def _agrees(self, inputs: Tensor) -> bool:
        """Whether programs of parts give the outputs of the whole, and the kernels have a part."""
        found = torch.cat([self._predict(part) for part in inputs.split(PART)])
        same = torch.allclose(found, self._model(inputs), rtol=1e-4, atol=1e-5)
        return same and None not in self._programs.values()

    def _predict(self, part: Tensor) -> Tensor:
        key = (part.shape, part.stride(), part.dtype)
        if key not in self._programs and len(self._programs) < MOST_SHAPES:
            self._programs[key] = self._program(part)
        program = self._programs.get(key)
        outputs: Tensor = self._model(part) if program is None else program(*self._given(part))
        return outputs

    def _given(self, inputs: Tensor) -> list[Tensor]:
        return [*self._model.parameters(), *self._model.buffers(), inputs]

    def _program(self, part: Tensor) -> GraphModule | None:
        """A program for inputs such as these, if the kernels have a part in it."""
        names = [name for name, _ in self._model.named_parameters()]
        names += [name for name, _ in self._model.named_buffers()]

        def run(*given: Tensor) -> Tensor:
            weights = dict(zip(names, given[:-1], strict=True))
            found: Tensor = called_with(self._model, weights, given[-1])
            return found

        try:
            with torch.inference_mode(mode=False), torch.no_grad():
                program = record(run, stand_ins(self._given(part)))
            lowered(simplified(program))
        except Exception:  # noqa: BLE001 - tracing may raise any exception
            return None
        joined = calls(program.graph, torch.ops.flfast.conv_pool.default)
        return program if any(joined) else None

    def _hooked(self) -> bool:
        """Whether others want to see what happens inside of the model."""
        hooks = (
            hook
            for module in self._model.modules()
            for found in (module._forward_hooks, module._forward_pre_hooks)  # noqa: SLF001
            for hook in found.values()
        )
        return any(not hook.__module__.startswith("flfast.") for hook in hooks)
