"""Refuses plans that an algorithm does not allow under any engine."""

from flfast.algorithms.contract.algorithm import Algorithm
from flfast.algorithms.contract.client import LocalStage
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree


def check_allowed(algorithm: Algorithm, joint: Tree, plan: RoundPlan) -> None:
    """Refuse a plan that splits batches or shards the model where the algorithm does not allow it.

    Args:
        algorithm: of the clients.
        joint: leaves that it trains beside the model, `{"params": ..., "buffers": ...}`.
        plan: of a round.

    Raises:
        ValueError: with the reason and an alternative.
    """
    reason = None
    if plan.strategy == "fsdp" and (joint["params"] or joint["buffers"]):
        reason = "trains two models, which strategy=fsdp cannot; use strategy=ddp"
    elif plan.strategy == "fsdp" and algorithm.stages != (LocalStage(),):
        reason = "trains parts of a model, which strategy=fsdp cannot; use strategy=ddp"
    elif not algorithm.splits_batches:
        reason = _splits_batches(plan)
    if reason is not None:
        raise ValueError(f"algorithm={algorithm.name} {reason}")


def _splits_batches(plan: RoundPlan) -> str | None:
    """How the plan splits the batch of a local step; None if it keeps it whole."""
    whole = "needs whole batches, which"
    if plan.strategy in {"dp", "fsdp"}:
        return f"{whole} strategy={plan.strategy} divides; use strategy=ddp"
    if plan.strategy == "ddp" and plan.shard == "batch":
        return f"{whole} strategy.shard=batch divides; use strategy.shard=clients"
    size, accumulate, micro_batch = plan.batching[:3]
    if micro_batch is not None:
        return f"{whole} micro_batch={micro_batch} cuts; use micro_batch=null"
    if accumulate > 1 and size > 0:
        return (
            f"{whole} trainer.accumulate_grad_batches={accumulate} cuts; use "
            f"batch_size={size * accumulate} and trainer.accumulate_grad_batches=1"
        )
    return None
