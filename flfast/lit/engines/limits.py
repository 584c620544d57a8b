"""Plans that an algorithm does not allow, whatever the engine."""

from flfast.algorithms.algorithm import Algorithm, LocalPhase
from flfast.plan import RoundPlan
from flfast.state.tree import Tree


def not_allowed(algorithm: Algorithm, joint: Tree, plan: RoundPlan) -> str | None:
    """Why a plan cannot train with an algorithm, or None.

    Args:
        algorithm: what clients do.
        joint: leaves that it trains beside the model, `{"params": ..., "buffers": ...}`.
        plan: of a round.
    """
    name = f"algorithm={algorithm.name}"
    if plan.strategy == "fsdp":
        if joint["params"] or joint["buffers"]:
            return f"{name} trains two models, which strategy=fsdp cannot; use strategy=ddp"
        if algorithm.phases != (LocalPhase(),):
            return f"{name} trains parts of a model, which strategy=fsdp cannot; use strategy=ddp"
    return None if algorithm.separable else _cut(name, plan)


def _cut(name: str, plan: RoundPlan) -> str | None:
    whole = f"{name} needs whole batches"
    if plan.strategy in {"dp", "fsdp"}:
        return f"{whole}, which strategy={plan.strategy} divides; use strategy=ddp"
    if plan.strategy == "ddp" and plan.shard == "batch":
        return f"{whole}, which strategy.shard=batch divides; use strategy.shard=clients"
    if plan.batching.micro_batch is not None:
        return f"{whole}, which micro_batch={plan.batching.micro_batch} cuts; use micro_batch=null"
    return None
