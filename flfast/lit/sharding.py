"""Sharding a model over ranks with torch's FSDP2, and what local training needs with it."""

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
        group: Any = fully_shard(module, mesh=mesh, reshard_after_forward=True)
        # Gloo has no mean.
        if mesh.device_type == "cpu":
            group.set_force_sum_reduction_for_comms(True)


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
    model: nn.Module, make_optimizer: Callable[..., Optimizer], *, lr: float, device: torch.device
) -> None:
    """Find out whether model and optimizer can be sharded, by trying; collective.

    Raises:
        ValueError: if a parameter has no dimension, or local steps on shards are impossible or
            not those on whole parameters.
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
    here = f"torch {torch.__version__} on the {device.type} with this optimizer"
    cures = "use another optimizer, a newer torch, or strategy=ddp"
    try:
        found = _trial_steps(make_optimizer, lr, mesh)
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"strategy=fsdp fails in {here}: {reason}; {cures}") from None
    pairs = zip(found, expected, strict=True)
    if not all(torch.allclose(*pair, rtol=1e-3, atol=1e-5) for pair in pairs):
        raise ValueError(f"strategy=fsdp gives other numbers in {here}; {cures}")


def _trial_steps(
    make_optimizer: Callable[..., Optimizer], lr: float, mesh: DeviceMesh | None = None
) -> list[Tensor]:
    """Parameters and gradients after two steps; no number of ranks divides their rows."""
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
    return [whole(t) for p in layer.parameters() for t in (p, p.grad) if t is not None]
