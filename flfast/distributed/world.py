"""The world: the ranks of a run, and what they exchange. One rank where nothing was launched."""

import os
import re
from collections.abc import Sequence
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

from flfast.state.stack import check_same_leaves
from flfast.state.tree import Tree, WeightedMean, leaves, tree_map


class World(NamedTuple):
    """Which process this is.

    Attributes:
        rank: of this process, in [0, size).
        size: number of ranks.
        local_rank: of this process on its node.
        local_size: ranks on its node.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


ALONE = World()


def launched_world() -> World | None:
    """The world that TorchElastic, torchrun or SLURM put this process into; None if none did.

    A world of SLURM is described in torchrun's variables from then on, which is where `env://`
    and Lightning look.
    """
    env = os.environ
    if "RANK" not in env and _in_step_of_slurm():
        env.update(_described_by_slurm())
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return None
    env.setdefault("LOCAL_RANK", "0")
    return World(
        rank=int(env["RANK"]),
        size=int(env["WORLD_SIZE"]),
        local_rank=int(env["LOCAL_RANK"]),
        local_size=int(env.get("LOCAL_WORLD_SIZE", "1")),
    )


def num_restarts() -> int:
    """How often TorchElastic or torchrun has started this world anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _in_step_of_slurm() -> bool:
    # Only srun describes steps; a batch script and a shell have variables of the whole job, too.
    return int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1 and SLURMEnvironment.detect()


def _described_by_slurm() -> dict[str, str]:
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ["SLURM_STEP_TASKS_PER_NODE"])
    by_node = [int(tasks) for tasks, nodes in counts for _ in range(int(nodes or 1))]
    # Without it Lightning refuses worlds that `srun --ntasks` alone has made.
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
    """What Lightning should know of the world, whatever it would detect by itself."""
    return TorchElasticEnvironment() if world.size > 1 else LightningEnvironment()


def gather(world: World, value: Any) -> list[Any]:
    """The values of all ranks, on every rank; collective."""
    if world.size == 1:
        return [value]
    values: list[Any] = [None] * world.size
    dist.all_gather_object(values, value)
    return values


def sum_over_ranks(world: World, values: Sequence[float]) -> list[float]:
    """Element-wise sum over ranks, on every rank; collective."""
    if world.size == 1:
        return list(values)
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return total.tolist()


@torch.no_grad()
def average_buffers(world: World, module: nn.Module) -> None:
    """Make a module's floating-point buffers the mean over ranks; collective."""
    for buffer in module.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= world.size


def reduce_mean(world: World, mean: WeightedMean) -> WeightedMean:
    """What all ranks added, on every rank: one sum over one flat tensor; collective.

    A rank that added nothing joins with zeros of the uploads' shape.
    """
    if world.size == 1:
        return mean
    like = like_of_any(world, None if mean.total is None else mean.like)
    if like is None:
        return mean
    if mean.total is None:
        mean.start_at_zero(like)
    assert mean.total is not None
    sums = list(leaves(mean.total))
    weight = torch.tensor([mean.weight], dtype=torch.float64)
    flat = torch.cat([weight, *(leaf.double().view(-1) for leaf in sums)])
    dist.all_reduce(flat)
    mean.weight = float(flat[0])
    for leaf, value in zip(sums, flat[1:].split([leaf.numel() for leaf in sums]), strict=True):
        leaf.copy_(value.view(leaf.shape))
    return mean


def like_of_any(world: World, like: Tree | None) -> Tree | None:
    """Shapes and types of the ranks' trees; None if no rank has one; collective.

    Raises:
        ValueError: if the trees of two ranks have different leaves.
    """
    # Meta tensors have shapes and types and weigh nothing.
    spec = None if like is None else tree_map(lambda leaf: leaf.to("meta"), like)
    specs = [(rank, found) for rank, found in enumerate(gather(world, spec)) if found is not None]
    for rank, found in specs[1:]:
        check_same_leaves(found, specs[0][1], f"rank {rank}")
    return specs[0][1] if specs else None
