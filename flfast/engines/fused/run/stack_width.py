"""How many clients make a stack."""

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from flfast.engines.fused.graph.dataflow import is_random
from flfast.engines.fused.graph.trace import placeholders
from flfast.plan import Batching

aten = torch.ops.aten

CPU_BYTES = 2**22
"""Of the states of a stack on the CPU: 4 MB took 0.5 to 0.9 of the time, 16 MB 1.3 of it."""

CPU_WIDTH = 16
"""Most clients of a stack on the CPU; more gain nothing."""

CPU_PRODUCTS = 2**19
"""Most parameters times examples of a step that is stacked on the CPU: larger products fill it."""

FREE_SHARE = 0.5
"""Of a GPU's free memory that a stack may take."""


def not_stackable(batching: Batching) -> str | None:
    """What in the batching keeps clients from stepping together, if anything."""
    if batching.accumulate > 1:
        return f"trainer.accumulate_grad_batches={batching.accumulate} cuts local steps"
    if batching.micro_batch is not None:
        return f"micro_batch={batching.micro_batch} cuts local steps"
    return None


def draws(step: GraphModule) -> bool:
    """Whether a traced step draws random numbers, which clients of a stack draw together."""
    return any(map(is_random, step.graph.nodes))


def auto_width(step: GraphModule, model: nn.Module, *, num_examples: int) -> int:
    """The number of clients that are faster together, 1 if none are.

    Args:
        step: traced, of one client.
        model: what it trains.
        num_examples: of its largest batch.
    """
    inputs = [node.meta["val"] for node in placeholders(step.graph) if node.users]
    state = sum(map(_bytes, inputs))
    device = inputs[0].device
    if device.type == "cuda":
        # What a step makes, as if it kept all of it.
        made = [node.meta.get("val") for node in step.graph.nodes if node.op == "call_function"]
        needed = state + sum(_bytes(value) for value in made if isinstance(value, Tensor))
        free, _ = torch.cuda.mem_get_info(device)
        return max(int(FREE_SHARE * free / needed), 1)
    num_params = sum(p.numel() for p in model.parameters())
    convolves = any(node.target is aten.convolution.default for node in step.graph.nodes)
    if convolves or draws(step) or num_params * num_examples > CPU_PRODUCTS:
        return 1
    return max(min(CPU_BYTES // max(state, 1), CPU_WIDTH), 1)


def _bytes(value: Tensor) -> int:
    return value.numel() * value.element_size()
