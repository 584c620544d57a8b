"""The world: the ranks of a run and their collectives. Without a launcher it is one rank."""

import io
import os
import pickle
import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from torch import nn

from flfast.distributed.pipes import Pipes, connected
from flfast.state.environment import integer
from flfast.state.precision import placed, widened
from flfast.state.stack import check_same_leaves
from flfast.state.tree import Tree, WeightedMean, leaves, tree_map


class World(NamedTuple):
    """This process and the number of ranks.

    Attributes:
        rank: rank of this process, in [0, size).
        size: world size.
        local_rank: rank of this process on its node, in [0, local_size).
        local_size: ranks on this node.
        device: on which this rank trains.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    device: torch.device = torch.device("cpu")


ALONE = World()


def launched_world() -> World | None:
    """The world that our launcher, torchrun or SLURM launched; None without a launcher.

    For SLURM it sets torchrun's environment variables, which `env://` and Lightning read.
    """
    env = os.environ
    # Only srun sets the variables of a step; batch scripts and shells have those of the job.
    in_step = integer("SLURM_STEP_NUM_TASKS", 1) > 1 and SLURMEnvironment.detect()
    if "RANK" not in env and in_step:
        env.update(_torchrun_variables_of_slurm())
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return None
    env.setdefault("LOCAL_RANK", "0")
    return World(
        rank=integer("RANK", 0),
        size=integer("WORLD_SIZE", 1),
        local_rank=integer("LOCAL_RANK", 0),
        local_size=integer("LOCAL_WORLD_SIZE", 1),
    )


_pipes: list[Pipes] = []
"""One object, if all ranks are on this machine."""


def open_pipes(rank: int, size: int, timeout_s: float) -> None:
    """Connect ranks by pipes, too, if all are on this machine; collective unless size is 1."""
    _pipes.clear()
    if 1 < size == integer("LOCAL_WORLD_SIZE", 1):
        tell = partial(gather, World(rank, size))
        _pipes.extend(filter(None, [connected(rank, size, tell, timeout_s=timeout_s)]))


def _torchrun_variables_of_slurm() -> dict[str, str]:
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ["SLURM_STEP_TASKS_PER_NODE"])
    by_node = [int(tasks) for tasks, nodes in counts for _ in range(int(nodes or 1))]
    # Without this variable Lightning refuses worlds of `srun --ntasks`.
    os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(max(by_node)))
    slurm = SLURMEnvironment(auto_requeue=False)
    return {
        "RANK": str(slurm.global_rank()),
        "WORLD_SIZE": str(slurm.world_size()),
        "LOCAL_RANK": str(slurm.local_rank()),
        "LOCAL_WORLD_SIZE": str(by_node[slurm.node_rank()]),
        "GROUP_RANK": str(slurm.node_rank()),
        "MASTER_ADDR": slurm.main_address,
        "MASTER_PORT": str(slurm.main_port),
    }


def cluster_environment(world: World) -> ClusterEnvironment:
    """The cluster environment for Lightning, which must not detect another one by itself."""
    return TorchElasticEnvironment() if world.size > 1 else LightningEnvironment()


_rooms: dict[str, int] = {}
"""Bytes that a gather of each name has room for, the same on all ranks."""


def gather(world: World, value: Any, name: str = "") -> list[Any]:
    """All-gather of picklable values; collective.

    It is one exchange between the ranks if every value fits in the room of its name, which is
    that of the largest values so far; otherwise two.
    """
    if world.size == 1:
        return [value]
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    own = file.getvalue()
    if _pipes and (found := _pipes[0].exchange(own)) is not None:
        return [pickle.loads(message) for message in found]
    messages = _exchange(world, own, _rooms.get(name, 1 << 10))
    longest = max(length for length, _ in messages)
    if longest > _rooms.get(name, 1 << 10):
        _rooms[name] = 1 << (longest - 1).bit_length()
        messages = _exchange(world, own, longest)
    return [pickle.loads(bytes(message[:length].numpy())) for length, message in messages]


_TYPES = {torch.float32, torch.float64, torch.int64}


class _Pickler(pickle.Pickler):
    """Pickles tensors as NumPy's arrays where those keep all; torch makes a file for each."""

    def reducer_override(self, value: Any) -> Any:
        """See `pickle.Pickler`."""
        known = type(value) is torch.Tensor and value.is_cpu and value.is_contiguous()
        if known and value.dtype in _TYPES and not value.requires_grad:
            return torch.from_numpy, (value.numpy(),)
        return NotImplemented


def _exchange(world: World, message: bytes, room: int) -> list[tuple[int, torch.Tensor]]:
    """The length and the first `room` bytes of every rank's message; collective."""
    sent = torch.zeros(8 + room, dtype=torch.uint8)
    part = message[:room]
    sent[:8].view(torch.int64)[0] = len(message)
    sent[8 : 8 + len(part)] = torch.frombuffer(bytearray(part), dtype=torch.uint8)
    received = torch.empty(world.size * len(sent), dtype=torch.uint8)
    dist.all_gather_into_tensor(received, sent)
    rows = received.view(world.size, -1)
    return [(int(row[:8].clone().view(torch.int64)[0]), row[8:]) for row in rows]


def sum_over_ranks(world: World, values: Sequence[float]) -> list[float]:
    """All-reduced element-wise sum; collective."""
    if world.size == 1:
        return list(values)
    total = torch.tensor(values, dtype=torch.float64)
    _add_up(total)
    return total.tolist()


@torch.no_grad()
def average_buffers(world: World, module: nn.Module) -> None:
    """Average a module's floating-point buffers over ranks, in place; collective."""
    for buffer in module.buffers():
        if buffer.is_floating_point():
            all_reduce(world, buffer)
            buffer /= world.size


def all_reduce(world: World, values: torch.Tensor) -> None:
    """Sum over ranks, in place; over NCCL if the ranks train on GPUs; collective."""
    over_nccl = f"{world.device.type}:nccl" in dist.get_backend_config()
    there = values.to(world.device) if over_nccl else values
    _add_up(there)
    if there is not values:
        values.copy_(there)


def _add_up(values: torch.Tensor) -> None:
    """Sum over ranks, in place: through pipes, or else by the backend; collective."""
    if _pipes and values.is_cpu and values.numel():
        own = values.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        if (found := _pipes[0].exchange(own)) is not None:
            first, *others = (
                torch.frombuffer(bytearray(message), dtype=values.dtype).view(values.shape)
                for message in found
            )
            values.copy_(sum(others, first))
            return
    dist.all_reduce(values)


def reduce_mean(world: World, mean: WeightedMean, like: Tree | None) -> WeightedMean:
    """Combine the means of all ranks by one all-reduce of a flat tensor; collective.

    The tensor is of float32 if all sums are, and else of the widest type. A rank that added
    nothing takes part with zeros. `like` is what all agreed on, or None.
    """
    if world.size == 1 or like is None:
        return mean
    if mean.total is None:
        mean.start_at_zero(like)
    assert mean.total is not None
    sums = list(leaves(mean.total))
    device = next((leaf.device for leaf in sums), world.device)
    weight = placed(torch.tensor([mean.weight], dtype=torch.float64), device)
    is_short = all(leaf.dtype == torch.float32 for leaf in sums)
    parts = [leaf.float() if is_short else widened(leaf) for leaf in (weight, *sums)]
    flat = torch.cat([part.view(-1) for part in parts])
    all_reduce(world, flat)
    mean.weight = float(flat[0])
    for leaf, value in zip(sums, flat[1:].split([leaf.numel() for leaf in sums]), strict=True):
        leaf.copy_(value.view(leaf.shape))
    return mean


def spec(like: Tree | None) -> Tree | None:
    """Shapes and dtypes of a tree, as meta tensors; None without a tree."""
    return None if like is None else tree_map(lambda leaf: leaf.to("meta"), like)


def common_spec(specs: Sequence[Tree | None]) -> Tree | None:
    """The spec of those ranks that have one; None if none has.

    Raises:
        ValueError: if the trees of two ranks have different leaves.
    """
    found = [(rank, spec) for rank, spec in enumerate(specs) if spec is not None]
    for rank, other in found[1:]:
        check_same_leaves(other, found[0][1], f"rank {rank}")
    return found[0][1] if found else None
