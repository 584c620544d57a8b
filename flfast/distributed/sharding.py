"""Sharding of a model over ranks with torch's FSDP2."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from flfast.state.messages import first_line
from flfast.state.weights import full_copy

# FSDP gathers parameters in a module's forward, and these have none.
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
# They read their children's parameters without calling the children.
_INDIVISIBLE = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def shard(model: nn.Module, mesh: DeviceMesh, *, group_params: int) -> None:
    """Shard a model in place, on the mesh's device.

    Forward and backward gather one group of parameters at a time. A group is a module with at
    least `group_params` parameters outside of smaller groups; the model is the last group.

    Args:
        model: on the CPU; the device never holds more than one full group.
        mesh: one-dimensional.
        group_params: smallest number of parameters in a group, >= 1.
    """
    groups: list[nn.Module] = []
    uses = Counter(p for _, p in model.named_parameters(remove_duplicate=False))
    _find_groups(model, group_params, uses, groups, set())
    for module in (*(group for group in groups if group is not model), model):
        group: Any = fully_shard(module, mesh=mesh, reshard_after_forward=True)
        # Gloo cannot average.
        if mesh.device_type == "cpu":
            group.set_force_sum_reduction_for_comms(True)


def _find_groups(
    module: nn.Module,
    group_params: int,
    uses: Mapping[nn.Parameter, int],
    groups: list[nn.Module],
    seen: set[nn.Module],
) -> int:
    """Append the module's groups, innermost first; returns the number of parameters left over."""
    if module in seen:
        return 0
    seen.add(module)
    left = sum(p.numel() for p in module.parameters(recurse=isinstance(module, _INDIVISIBLE)))
    if not isinstance(module, _INDIVISIBLE):
        for child in module.children():
            left += _find_groups(child, group_params, uses, groups, seen)
    # A tied parameter belongs to the group of a module that contains all its uses.
    inside = Counter(p for _, p in module.named_parameters(remove_duplicate=False))
    tied = any(num < uses[p] for p, num in inside.items())
    if left < group_params or tied or isinstance(module, _CONTAINERS):
        return left
    groups.append(module)
    return 0


class _MeanOverRanks(torch.autograd.Function):
    """All-reduced mean. Backward is the identity, because FSDP averages gradients over ranks."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        total = value.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        return grads[0]


def mean_over_ranks(value: Tensor, mesh: DeviceMesh) -> DTensor:
    """Mean over ranks of a loss [], as a DTensor that combines with sharded parameters.

    Its gradient with respect to this rank's value is 1; FSDP averages parameter gradients.
    """
    mean: Tensor = _MeanOverRanks.apply(value)
    return DTensor.from_local(mean, mesh, [Replicate()], run_check=False)


def sharded_leaves(params: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Separate autograd leaves with the same values, for objectives that read parameters directly.

    FSDP writes gradients of its parameters on another stream, so autograd must not write to them.
    """
    return {n: p.detach().requires_grad_(p.requires_grad) for n, p in params.items()}


def add_gradients(params: Mapping[str, nn.Parameter], leaves: Mapping[str, Tensor]) -> None:
    """Add the gradients of `sharded_leaves` to the parameters' gradients, and reset them."""
    for name, leaf in leaves.items():
        param, grad = params[name], leaf.grad
        if grad is None:
            continue
        assert isinstance(param, DTensor) and isinstance(grad, DTensor)
        grad = grad.redistribute(placements=param.placements)
        param.grad = grad if param.grad is None else param.grad + grad
        leaf.grad = None


def check_shardable(
    model: nn.Module, make_optimizer: Callable[..., Optimizer], *, lr: float, device: torch.device
) -> None:
    """Check by a step whether model and optimizer can be sharded; collective.

    Raises:
        ValueError: if a parameter is a scalar, or if steps on shards fail or differ from steps on
            full parameters.
    """
    for name, p in model.named_parameters():
        if not p.ndim:
            raise ValueError(
                f"strategy=fsdp: parameter {name} has shape [], and only dimensions can be "
                f"sharded; give it shape [1], or use strategy=ddp"
            )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    expected = _trial_steps(make_optimizer, lr)
    setup = f"torch {torch.__version__} on the {device.type} with this optimizer"
    remedy = "use another optimizer, a newer torch, or strategy=ddp"
    try:
        found = _trial_steps(make_optimizer, lr, mesh)
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        reason = first_line(error)
        raise ValueError(f"strategy=fsdp fails in {setup}: {reason}; {remedy}") from None
    pairs = zip(found, expected, strict=True)
    if not all(torch.allclose(*pair, rtol=1e-3, atol=1e-5) for pair in pairs):
        raise ValueError(f"strategy=fsdp gives other numbers in {setup}; {remedy}")


def _trial_steps(
    make_optimizer: Callable[..., Optimizer], lr: float, mesh: DeviceMesh | None = None
) -> list[Tensor]:
    """Parameters and gradients after two steps; their rows are not divisible by the ranks."""
    size, rank = dist.get_world_size(), dist.get_rank()
    layer = nn.Linear(3, 2 * size + 1)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.linspace(1, 2, p.numel()).view(p.shape))
    inputs = torch.arange(1.0, 3 * size + 1).view(size, 3) / size
    if mesh is not None:
        shard(layer, mesh, group_params=1)
        inputs = inputs[rank : rank + 1].to(mesh.device_type)
    optimizer = make_optimizer(list(layer.parameters()), lr=lr)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = layer(inputs).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)  # type: ignore[arg-type]
    return [full_copy(t) for p in layer.parameters() for t in (p, p.grad) if t is not None]
