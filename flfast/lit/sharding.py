"""Sharding a model over ranks with torch's FSDP2, and what local training needs with it."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.optim import Optimizer

from flfast.state.sharding import whole

# They have no forward of their own, which is what gathers parameters.
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
# They read their children's parameters without calling the children.
_INDIVISIBLE = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


def shard(model: nn.Module, mesh: DeviceMesh, *, group_params: int) -> None:
    """Leave to every rank its part of each parameter, in place, on the mesh's device.

    Parameters are gathered a group at a time, forward and backward. A group is the smallest
    module with at least `group_params` parameters that no smaller group has; the model itself
    takes what is left.

    Args:
        model: on the CPU; device memory never holds more than a group of it.
        mesh: of one dimension.
        group_params: parameters of a group, >= 1.
    """
    groups: list[nn.Module] = []
    uses = Counter(p for _, p in model.named_parameters(remove_duplicate=False))
    _find_groups(model, group_params, uses, groups, set())
    for module in (*(group for group in groups if group is not model), model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)


def _find_groups(
    module: nn.Module,
    group_params: int,
    uses: Mapping[nn.Parameter, int],
    groups: list[nn.Module],
    seen: set[nn.Module],
) -> int:
    """Append the module's groups, smallest first; returns the parameters in none of them."""
    if module in seen:
        return 0
    seen.add(module)
    left = sum(p.numel() for p in module.parameters(recurse=isinstance(module, _INDIVISIBLE)))
    if not isinstance(module, _INDIVISIBLE):
        for child in module.children():
            left += _find_groups(child, group_params, uses, groups, seen)
    # A parameter that is tied to another module's is gathered with what holds both.
    own = Counter(p for _, p in module.named_parameters(remove_duplicate=False))
    tied = any(num < uses[p] for p, num in own.items())
    if left < group_params or tied or isinstance(module, _CONTAINERS):
        return left
    groups.append(module)
    return 0


class _MeanOverRanks(torch.autograd.Function):
    """Mean over ranks. A rank's gradient is that of its own value: FSDP takes the mean of them."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        total = value.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        return grads[0]


def mean_over_ranks(value: Tensor, mesh: DeviceMesh) -> DTensor:
    """Mean over ranks of a loss [], the same on every rank, next to sharded parameters.

    Its gradient in this rank's value is 1; gradients are averaged over ranks where parameters are.
    """
    mean: Tensor = _MeanOverRanks.apply(value)
    return DTensor.from_local(mean, mesh, [Replicate()], run_check=False)


def sharded_leaves(params: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The same values as leaves of their own, for objectives that read parameters directly.

    FSDP writes the gradients of its parameters on another stream; nobody else may meanwhile.
    """
    return {n: p.detach().requires_grad_(p.requires_grad) for n, p in params.items()}


def add_gradients(params: Mapping[str, nn.Parameter], leaves: Mapping[str, Tensor]) -> None:
    """Move the gradients of `sharded_leaves` to the parameters."""
    for name, leaf in leaves.items():
        param, grad = params[name], leaf.grad
        if grad is None:
            continue
        assert isinstance(param, DTensor) and isinstance(grad, DTensor)
        grad = grad.redistribute(placements=param.placements)
        param.grad = grad if param.grad is None else param.grad + grad
        leaf.grad = None


def check_shardable(
    model: nn.Module, make_optimizer: Callable[..., Optimizer], *, lr: float
) -> None:
    """Find out whether model and optimizer can be sharded; collective.

    Raises:
        ValueError: if a parameter has no dimension, or the optimizer's steps on shards are not
            its steps on whole parameters.
    """
    for name, p in model.named_parameters():
        if not p.ndim:
            raise ValueError(
                f"strategy=fsdp: parameter {name} has shape [], and only dimensions can be "
                f"sharded; give it shape [1], or use strategy=ddp"
            )
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    cures = "use another optimizer, or strategy=ddp"
    expected = _trial_steps(make_optimizer, lr, lambda value: value.clone())
    try:
        found = _trial_steps(make_optimizer, lr, lambda value: distribute_tensor(value, mesh))
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"strategy=fsdp: no optimizer step on shards: {reason}; {cures}"
        ) from None
    if not all(torch.allclose(*pair) for pair in zip(found, expected, strict=True)):
        raise ValueError(
            f"strategy=fsdp: the optimizer steps otherwise on shards than on whole parameters; "
            f"{cures}"
        )


def _trial_steps(
    make_optimizer: Callable[..., Optimizer], lr: float, place: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Two parameters after two steps; no number of ranks divides their first dimension."""
    rows = 2 * dist.get_world_size() + 1
    values = [torch.linspace(1, 2, rows * 3).view(rows, 3), torch.ones(1)]
    params = [nn.Parameter(place(value)) for value in values]
    optimizer = make_optimizer(params, lr=lr)

    def closure() -> Tensor:
        for p, value in zip(params, values, strict=True):
            p.grad = place(value.sin())
        return torch.zeros(())

    for _ in range(2):
        optimizer.step(closure)  # type: ignore[arg-type]
    return [whole(p) for p in params]
