"""Decides how many clients train together in one stack.

`client_stack.py` asks before the first round of a plan, with the traced step of one client.
`engines/fused/training.py` asks first whether the batching allows stacks at all.
"""

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from flfast.engines.fused.graph.dataflow import is_random
from flfast.engines.fused.graph.trace import placeholders
from flfast.state.plan import Batching

aten = torch.ops.aten

CPU_BYTES = 2**22
"""Largest size of a stack's states on the CPU. Compared with single clients, states of 4 MB took
0.5 to 0.9 of the time, and states of 16 MB took 1.3 of it."""

CPU_WIDTH = 16
"""Largest stack on the CPU; wider ones are not faster."""

CPU_PRODUCTS = 2**19
"""Largest step (parameters times examples) to stack on the CPU. Larger matrix products use the
core fully without a stack."""

FREE_SHARE = 0.5
"""Share of a GPU's free memory that a stack may take."""


def not_stackable(batching: Batching) -> str | None:
    """Why the batching does not allow stacks; None if it does."""
    whole = batching.accumulate == 1 and batching.micro_batch is None
    return None if whole else "micro_batch and trainer.accumulate_grad_batches cut local steps"


def auto_width(step: GraphModule, model: nn.Module, *, num_examples: int) -> int:
    """The number of clients to train together; 1 where stacks are not faster.

    `step` is traced, of one client, and `num_examples` those of the largest batch.
    """
    inputs = [node.meta["val"] for node in placeholders(step.graph) if node.users]
    state = sum(map(_bytes, inputs))
    device = inputs[0].device
    if device.type == "cuda":
        # An upper bound: all intermediate values at once.
        results = [node.meta.get("val") for node in step.graph.nodes if node.op == "call_function"]
        needed = state + sum(_bytes(value) for value in results if isinstance(value, Tensor))
        free, _ = torch.cuda.mem_get_info(device)
        return max(int(FREE_SHARE * free / needed), 1)
    num_params = sum(p.numel() for p in model.parameters())
    convolves = any(node.target is aten.convolution.default for node in step.graph.nodes)
    # Clients of a stack draw together, so their numbers are not those of single clients.
    draws = any(map(is_random, step.graph.nodes))
    if convolves or draws or num_params * num_examples > CPU_PRODUCTS:
        return 1
    return max(min(CPU_BYTES // max(state, 1), CPU_WIDTH), 1)


def _bytes(value: Tensor) -> int:
    return value.numel() * value.element_size()
